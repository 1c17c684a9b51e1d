"""Reads journals, as they grow or afterwards: records of requests, and their ledgers."""

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..ledger import Ledger, LedgerError, LedgerHeader, LedgerStep, keeps_budget, with_figures
from ..settings import SamplingConfig
from .journal import PATTERN, STEP_FIELDS

WAIT_S = 5.0
"""Seconds that a journal may be late: on a device it is written by a thread, not in the steps."""

LOOK_S = 0.002
"""Seconds between two looks into a journal that is late: a fraction of a step, and more than a look
takes."""

FULL: Final = b'{"full": '
"""Begins the last line of a file that is full."""


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
    footer: dict[str, Any] = field(default_factory=dict)
    """The way it ended and what it took, where the engine has said so."""
    _ends: frozenset[int] = field(init=False)
    _last: int | None = None
    """The step of the first token that ends the text, None without one."""

    def __post_init__(self) -> None:
        self._ends = frozenset(self.header.stop_token_ids)

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
        """The ledger that the Decoder would have written."""
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


class JournalReader:
    """Follows the journals of a folder as they grow; remembers requests that were not forgotten."""

    def __init__(
        self,
        folder: Path | str,
        *,
        skipped: Iterable[str] = (),
        only: AbstractSet[str] | None = None,
    ) -> None:
        """skipped: names of files that are never read, of engines that have ended or of others.
        only: ids of the requests that are remembered, a set that may change; None for all."""
        self._folder, self._only = os.fspath(folder), only
        self._offsets: dict[str, int | None] = dict.fromkeys(skipped)
        """Bytes that were read of each file, in the order they began; None of one that is full or
        skipped, which is not opened any more."""
        self._records: dict[str, Record] = {}

    def refresh(self) -> bool:
        """Read what was written since, True if there was something; a line that is still being
        written waits. A file that has not grown is not opened, and one that is full never again."""
        has_news = False
        for line in self._lines():
            self._take(line)
            has_news = True
        return has_news

    def ended_records(self) -> Iterator[Record]:
        """Read all that is there and give each record once, those of texts that have ended first:
        of a journal of any size, the others at most are in memory."""
        for line in self._lines():
            if (name := self._take(line)) is not None:
                yield self._records.pop(name)
        yield from self._records.values()

    def find(self, request_id: str) -> Record | None:
        """The record of a request that has begun."""
        return self._records.get(request_id)

    def holding(self, request_id: str, num_drawn: int) -> Record | None:
        """The record of a request, once it has so many tokens or says why it has not."""
        record = self.find(request_id)
        has_all = record is not None and (record.error or record.num_drawn >= num_drawn)
        return record if has_all else None

    def forget(self, request_id: str) -> None:
        """Its request has ended."""
        self._records.pop(request_id, None)

    def records(self) -> Iterator[Record]:
        """All that was read and not forgotten."""
        return iter(list(self._records.values()))

    def _lines(self) -> Iterator[bytes]:
        """The whole lines that were written since; the folder is looked into only where no file
        that was there has grown."""
        growing = [name for name, offset in self._offsets.items() if offset is not None]
        is_new = False
        for line in self._lines_of(growing):
            is_new = True
            yield line
        if not is_new:
            names = journal_names(self._folder)
            yield from self._lines_of([name for name in names if name not in self._offsets])

    def _lines_of(self, names: Sequence[str]) -> Iterator[bytes]:
        """The whole lines of files from where they were read."""
        for name in names:
            offset, path = self._offsets.setdefault(name, 0), os.path.join(self._folder, name)
            try:
                if offset is None or os.stat(path).st_size <= offset:
                    continue
            except FileNotFoundError:  # its operator has moved it away
                self._offsets[name] = None
                continue
            with open(path, "rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    self._offsets[name] = None if line.startswith(FULL) else offset
                    yield line

    def _take(self, line: bytes) -> str | None:
        """Note a line; the id of the text that has ended with it, None for none."""
        try:
            entry = json.loads(line)
        except ValueError:
            return None  # torn: the disk was full; whose steps are missing shows by their numbers
        if "open" in entry and (self._only is None or entry["open"] in self._only):
            self._records[entry["open"]] = Record(
                request_id=entry["open"],
                header=LedgerHeader(**with_figures(LedgerHeader, entry["header"])),
                has_stops=bool(entry["stops"]),
                rule_certifies=not entry.get("uncertified", False),
                client_id=entry.get("client_id", ""),
            )
        for name, *figures in entry.get("steps", ()):
            if name in self._records:
                step = with_figures(LedgerStep, dict(zip(STEP_FIELDS, figures, strict=True)))
                self._records[name].add(LedgerStep(**step))
        if (name := entry.get("failed")) in self._records:
            self._records[name].error = entry["error"]
        if (name := entry.get("ended")) not in self._records:
            return None
        record = self._records[name]
        record.has_ended, record.footer = True, entry.get("footer", {})
        return record.request_id


def journal_names(folder: Path | str) -> list[str]:
    """Names of a folder's journals, in the order of their beginnings."""
    return sorted(path.name for path in Path(folder).glob(PATTERN))


def journal_ledgers(folder: Path | str) -> Iterator[tuple[str, Ledger]]:
    """The requests of a folder's journals that drew a token, with their ledgers, as texts ended.

    Raises LedgerError for a folder without journals.
    """
    if not any(Path(folder).glob(PATTERN)):
        raise LedgerError(f"{folder} holds no journal: its files are named {PATTERN}")
    records = JournalReader(folder).ended_records()
    return ((record.request_id, record.ledger()) for record in records if record.drawn)
