"""Reads journals, as they grow or afterwards: records of requests, and their ledgers."""

import json
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from ..ledger import Ledger, LedgerError, LedgerHeader, LedgerStep, keeps_budget, with_figures
from ..settings import SamplingConfig
from .answers import answer_figures
from .journal import PATTERN, STEP_FIELDS

WAIT_S = 5.0
"""Seconds that a journal may be late: on a device it is written by a thread, not in the steps."""

LOOK_S = 0.002
"""Seconds between two looks into a journal that is late: a fraction of a step, and more than a look
takes."""

NUM_KEPT = 65_536
"""Records that an engine's reader holds at most: those of clients that left are never asked for."""

CONTINUED: Final = b'{"continued": '
"""Begins the last line of a file that is full."""

SETTLED_NS: Final = 1_000_000_000
"""A folder that was changed so long ago has a time that a later change changes: file systems count
in ticks, of some milliseconds on most."""


class JournalError(ValueError):
    """A journal that cannot be read, or that lacks what was to be sent."""


@dataclass(kw_only=True, slots=True)
class Record:
    """One request as the journal has it."""

    request_id: str
    header: LedgerHeader
    has_stops: bool
    steps: list[LedgerStep] = field(default_factory=list)
    error: str = ""
    rule_certifies: bool = True
    client_id: str = ""
    """The id by which the client names the request; "" for none."""
    has_ended: bool = False
    """The engine has said that it draws no more."""
    file: str = ""
    """Name of the file in which it begins."""
    footer: dict[str, Any] = field(default_factory=dict)
    """The way it ended and what it took, where the engine has said so."""
    _ends: frozenset[int] = field(init=False)
    _last: int | None = None
    """The step of the first token that ends the text, None without one."""

    def __post_init__(self) -> None:
        self._ends = frozenset(self.header.stop_token_ids)

    @property
    def outer_id(self) -> str:
        """The id that the request came with, without what vLLM adds."""
        return _outer_name(self.request_id)

    def add(self, step: LedgerStep) -> None:
        """A step, which replaces itself and what came after where it comes twice."""
        if step.step > len(self.steps):
            self.error = self.error or f"steps {len(self.steps)} to {step.step - 1} are missing"
            return
        del self.steps[step.step :]
        self.steps.append(step)
        if self._last is not None and self._last >= step.step:
            self._last = None
        if self._last is None and step.token_id in self._ends:
            self._last = step.step

    @property
    def num_drawn(self) -> int:
        """Steps up to the end of the text; an engine may have drawn beyond it."""
        end = len(self.steps) if self._last is None else self._last + 1
        return min(end, self.header.horizon)

    @property
    def drawn(self) -> list[LedgerStep]:
        """The steps of `num_drawn`."""
        return self.steps[: self.num_drawn]

    @property
    def is_whole(self) -> bool:
        """Whether nothing that is drawn after this can belong to the text."""
        is_full = self._last is not None or len(self.steps) >= self.header.horizon
        return is_full or self.has_ended or bool(self.error)

    @property
    def spent(self) -> float | None:
        """Nats of all that was drawn, sent or not, which may be negative where drawn tokens are
        charged; None where that is not known."""
        spent = math.fsum(step.spend for step in self.drawn)
        return None if self.error or not math.isfinite(spent) else spent

    def certified(self) -> bool:
        """True if the bound holds for this text."""
        is_greedy = SamplingConfig.of(self.header.sampling).is_greedy
        may_be = self.rule_certifies and not (self.error or is_greedy)
        return may_be and keeps_budget(self.header, self.drawn)

    def ledger(self) -> Ledger:
        """As the Decoder would have written it."""
        steps = self.drawn
        ending = self.footer or {
            "finish_reason": self._finish_reason(steps),
            # One row of logits each; the engine does not say how many forwards these shared.
            "safe_forwards": len(steps),
            "risky_forwards": len(steps),
        }
        if self.error:
            ending = {**ending, "finish_reason": "error"}
        return Ledger(header=self.header, steps=steps, certified=self.certified(), **ending)

    def _finish_reason(self, steps: Sequence[LedgerStep]) -> str:
        if self.error or not steps:
            return "error"
        if steps[-1].token_id in self.header.stop_token_ids:
            return "stop_token"
        if len(steps) == self.header.horizon:
            return "length"
        return "stop_string" if self.has_stops else "aborted"

    def answer(self, token_ids: list[int]) -> dict[str, Any]:
        """The figures that a response gives of a text, all of whose tokens the journal holds; nats.

        Raises JournalError where it holds others, unless the request has failed.
        """
        steps = self.drawn[: len(token_ids)]
        drawn = [step.token_id for step in steps]
        if drawn != token_ids and not self.error:
            raise JournalError(f"{self.request_id}: the journal holds {drawn}, not {token_ids}")
        return answer_figures(
            self.request_id,
            self.header,
            spent=math.fsum(step.spend for step in steps),
            certified=self.certified(),
            error=self.error,
        )


class JournalReader:
    """Follows the journals of a folder as they grow; remembers what was not taken yet."""

    def __init__(
        self,
        folder: Path | str,
        *,
        skips_written: bool = False,
        skipped: Iterable[str] = (),
        num_kept: int | None = None,
        only: AbstractSet[str] | None = None,
    ) -> None:
        """skips_written: files that are there are never read, of engines that have ended or of
        others. skipped: names of files that are never read. num_kept: records that are remembered
        at most, None for all. only: ids of the requests that are remembered, None for all."""
        self._folder, self._num_kept, self._only = os.fspath(folder), num_kept, only
        self._offsets: dict[str, int] = {}
        """Bytes that were read of each file that may grow, by name, in the order they began."""
        self._done = {*skipped, *(self._names() if skips_written else ())}
        """Names of files that are not opened any more."""
        self._read = ""
        """Name of the file whose lines are read."""
        self._looked_ns: int | None = None
        """The folder's time of change at the last look for new files."""
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._ids: dict[str, str] = {}
        """The engine's ids, by those that requests came with."""
        self._given_up: set[str] = set()
        """Ids of texts that were taken for ended."""

    def refresh(self) -> bool:
        """Read what was written since, True if there was something; a line that is still being
        written waits. A file that has not grown is not opened, and one that is full never again."""
        has_news = False
        for line in self._lines():
            self._take(line)
            has_news = True
        while self._num_kept is not None and len(self._records) > self._num_kept:
            self.forget(next(iter(self._records)))
        return has_news

    def ended_records(self) -> Iterator[Record]:
        """Read all that is there and give each record once, those of texts that have ended first:
        of a journal of any size, those of one file at most are in memory.

        Raises JournalError for a step of a text after a whole file without one.
        """
        counts: dict[str, int] = {}
        for line in self._lines():
            if (name := self._take(line)) is not None:
                yield self._records[name]
                self.forget(name)
            if line.startswith(CONTINUED):
                # The engine says nothing of the end of a text that its client broke off.
                idle = [n for n, r in self._records.items() if counts.get(n) == len(r.steps)]
                for name in idle:
                    yield self._records[name]
                    self.forget(name)
                self._given_up.update(idle)
                counts = {n: len(r.steps) for n, r in self._records.items()}
        yield from self._records.values()

    def _lines(self) -> Iterator[bytes]:
        """The whole lines that were written since, file by file."""
        self._look_for_files()
        names = deque(self._offsets)
        while names:
            name = names.popleft()
            for line in self._lines_of(name):
                if line.startswith(CONTINUED):
                    self._done.add(name)
                    del self._offsets[name]
                    following = json.loads(line)["continued"]
                    if following not in self._offsets and following not in self._done:
                        self._offsets[following] = 0
                        names.append(following)
                yield line

    def _lines_of(self, name: str) -> Iterator[bytes]:
        path, offset = os.path.join(self._folder, name), self._offsets[name]
        try:
            if os.stat(path).st_size <= offset:
                return
        except FileNotFoundError:  # its operator has moved it away
            self._done.add(name)
            del self._offsets[name]
            return
        with open(path, "rb") as file:
            file.seek(offset)
            self._read = name
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._offsets[name] += len(line)
                yield line

    def _look_for_files(self) -> None:
        """Note files that have begun; the folder is read only if it has changed."""
        try:
            changed_ns = os.stat(self._folder).st_mtime_ns
        except FileNotFoundError:
            return
        if changed_ns == self._looked_ns:
            return
        # A change that is too new may be followed by one with the same time.
        is_settled = time.time_ns() - changed_ns > SETTLED_NS
        self._looked_ns = changed_ns if is_settled else None
        for name in sorted(self._names()):
            if name not in self._done:
                self._offsets.setdefault(name, 0)

    def _names(self) -> list[str]:
        """Names of the journals; their order is that of their beginnings."""
        if not os.path.isdir(self._folder):
            return []
        with os.scandir(self._folder) as entries:  # a glob takes three times as long
            return [entry.name for entry in entries if fnmatchcase(entry.name, PATTERN)]

    def find(self, name: str) -> Record | None:
        """The record of a request by its id, or by what vLLM made its id of."""
        if name in self._records:
            return self._records[name]
        return self._records.get(self._ids.get(name, ""))

    def answer(self, name: str, token_ids: list[int]) -> dict[str, Any]:
        """The figures that a response gives of a text, as `Record.answer`; {} before it begins.

        Raises JournalError where the journal does not hold these tokens.
        """
        try:  # most lines are read with those of another text of the same step
            return self._answer(name, token_ids)
        except JournalError:
            self.refresh()
            return self._answer(name, token_ids)

    def _answer(self, name: str, token_ids: list[int]) -> dict[str, Any]:
        record = self.find(name)
        if record is not None:
            return record.answer(token_ids)
        if token_ids:
            raise JournalError(f"the journal holds nothing of request {name}")
        return {}

    def forget(self, name: str) -> None:
        """Its request has ended."""
        if (record := self.find(name)) is not None:
            del self._records[record.request_id]
            self._ids.pop(record.outer_id, None)

    def records(self) -> Iterator[Record]:
        """All that was read and not forgotten."""
        return iter(list(self._records.values()))

    def _take(self, line: bytes) -> str | None:
        """Note a line; the id of the text that has ended with it, None for none."""
        try:
            entry = json.loads(line)
        except ValueError:
            return None  # torn: the disk was full; whose steps are missing shows by their numbers
        if "open" in entry:
            self._open(entry)
        for name, *figures in entry.get("steps", ()):
            if name in self._records:
                step = with_figures(LedgerStep, dict(zip(STEP_FIELDS, figures, strict=True)))
                self._records[name].add(LedgerStep(**step))
            elif name in self._given_up:
                raise JournalError(f"{name} has a step after a whole file without one")
        if (name := entry.get("failed")) in self._records:
            self._records[name].error = entry["error"]
        if (name := entry.get("ended")) not in self._records:
            return None
        record = self._records[name]
        record.has_ended, record.footer = True, entry.get("footer", {})
        return record.request_id

    def _open(self, entry: dict[str, Any]) -> None:
        name = entry["open"]
        if self._only is not None and self._only.isdisjoint((name, _outer_name(name))):
            return
        self._records[name] = Record(
            request_id=name,
            header=LedgerHeader(**with_figures(LedgerHeader, entry["header"])),
            has_stops=bool(entry["stops"]),
            rule_certifies=not entry.get("uncertified", False),
            client_id=entry.get("client_id", ""),
            file=self._read,
        )
        self._ids[_outer_name(name)] = name


def _outer_name(request_id: str) -> str:
    """Without the "-" and eight random letters that vLLM adds to what a request came with."""
    return request_id[:-9] if request_id[-9:-8] == "-" else request_id


def journal_ledgers(folder: Path | str) -> Iterator[tuple[str, Ledger]]:
    """The requests of a folder's journals that drew a token, with their ledgers, as texts ended.

    Raises LedgerError for a folder without journals.
    """
    if not any(Path(folder).glob(PATTERN)):
        raise LedgerError(f"{folder} holds no journal: its files are named {PATTERN}")
    records = JournalReader(folder).ended_records()
    return ((record.request_id, record.ledger()) for record in records if record.drawn)
