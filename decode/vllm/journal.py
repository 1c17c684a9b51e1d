"""The journal of an engine: what was drawn, on disk before a token leaves; ledgers made of it."""

import json
import math
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ...durable_files import json_value
from ..ledger import Ledger, LedgerError, LedgerHeader, LedgerStep, known_fields, with_figures
from ..settings import SamplingConfig

SCHEMA = "anchored-journal/1"
PATTERN = "journal-*.jsonl"
WAIT_S = 5.0
"""Seconds that a journal may be late: on a device it is written beside the steps, not in them."""

LOOK_S = 0.01

NUM_KEPT = 65_536
"""Records that an engine's reader holds at most: nobody asks for those that clients left."""

# A line is one of
#   {"schema": ...}                        the first
#   {"open": id, "header": {...}, "stops": bool}
#   {"steps": [[id, step, token_id, accepted, budget, spend, weight, log p*, log p_s], ...]}
#   {"failed": id, "error": "..."}
# A step that stands twice counts by its last line: a preempted request draws it again.


class JournalError(ValueError):
    """A journal that cannot be read, or that lacks what was to be sent."""


class JournalWriter:
    """Appends lines to a new file, each by one write that a killed process leaves whole."""

    def __init__(self, folder: Path | str) -> None:
        """Raises OSError where no file can be made there."""
        root = Path(folder)
        root.mkdir(parents=True, exist_ok=True)
        self.path = root / f"journal-{time.time_ns()}-{os.getpid()}.jsonl"
        self._file: BinaryIO = self.path.open("xb", buffering=0)
        # An engine in the caller's process says nothing when it is dropped.
        self._closing = weakref.finalize(self, self._file.close)
        self._is_torn = False
        self._write({"schema": SCHEMA})

    def open(self, request_id: str, header: LedgerHeader, *, has_stops: bool) -> None:
        """A request that draws its first token. has_stops: its caller named further ends."""
        self._write({"open": request_id, "header": known_fields(header), "stops": has_stops})

    def steps(self, rows: Sequence[tuple[str, LedgerStep]]) -> None:
        """The tokens that one step of the engine drew."""
        if rows:
            self._write(
                {
                    "steps": [
                        [name, *(getattr(step, field) for field in _STEP_FIELDS)]
                        for name, step in rows
                    ]
                }
            )

    def close(self) -> None:
        """Nothing more is written; else the file is closed when the writer is dropped."""
        self._closing()

    def fail(self, request_id: str, error: str) -> None:
        """A request that ends without a law to draw from."""
        self._write({"failed": request_id, "error": error})

    def _write(self, line: Mapping[str, Any]) -> None:
        """Raises OSError where the line is not on the file, whole."""
        text = ("\n" if self._is_torn else "") + json.dumps(json_value(line)) + "\n"
        content = text.encode()
        self._is_torn = True
        if self._file.write(content) != len(content):
            raise OSError(f"{self.path}: the disk is full")
        self._is_torn = False


_STEP_FIELDS = (
    "step",
    "token_id",
    "accepted",
    "budget",
    "spend",
    "weight",
    "log_prob",
    "safe_log_prob",
)


@dataclass(kw_only=True, slots=True)
class Record:
    """One request as the journal tells it."""

    request_id: str
    header: LedgerHeader
    has_stops: bool
    steps: list[LedgerStep] = field(default_factory=list)
    error: str = ""

    def add(self, step: LedgerStep) -> None:
        """A step, which replaces itself and what came after where it stands twice."""
        if step.step > len(self.steps):
            self.error = self.error or f"steps {len(self.steps)} to {step.step - 1} are missing"
            return
        del self.steps[step.step :]
        self.steps.append(step)

    @property
    def drawn(self) -> list[LedgerStep]:
        """The steps up to the end of the text; an engine may have drawn beyond it."""
        ends = set(self.header.stop_token_ids)
        first = next((i for i, step in enumerate(self.steps) if step.token_id in ends), None)
        last = self.header.horizon if first is None else first + 1
        return self.steps[: min(last, self.header.horizon)]

    def certified(self) -> bool:
        """Whether the bound holds for this text."""
        return not self.error and not SamplingConfig.of(self.header.sampling).is_greedy

    def ledger(self) -> Ledger:
        """As the Decoder would have written it."""
        steps = self.drawn
        return Ledger(
            header=self.header,
            steps=steps,
            certified=self.certified(),
            finish_reason=self._finish_reason(steps),
            # One row of logits each; the engine does not tell how many forwards these shared.
            safe_forwards=len(steps),
            risky_forwards=len(steps),
        )

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
        header = self.header
        figures: dict[str, Any] = {
            "id": self.request_id,
            "k": header.k,
            "K": header.K,
            "debt": header.debt,
            "spent": math.fsum(step.spend for step in steps),
            "bound": header.bound,
            "certified": self.certified(),
        }
        if self.error:
            figures["error"] = self.error
        plain: dict[str, Any] = json_value(figures)
        return plain


class JournalReader:
    """Follows the journals of a folder as they grow; remembers what nobody has taken yet."""

    def __init__(
        self, folder: Path | str, *, skips_written: bool = False, num_kept: int | None = None
    ) -> None:
        """skips_written: what earlier engines left in the folder is not read. num_kept: records
        that are remembered at most, all unless given."""
        self._folder, self._num_kept = Path(folder), num_kept
        written = self._folder.glob(PATTERN) if skips_written else ()
        self._offsets: dict[Path, int] = {path: path.stat().st_size for path in written}
        self._records: OrderedDict[str, Record] = OrderedDict()
        self._ids: dict[str, str] = {}
        """The engine's ids, by those that requests came with."""

    def refresh(self) -> None:
        """Read what was written since; a line that is still being written waits."""
        for path in sorted(self._folder.glob(PATTERN)):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                content = file.read()
            whole, newline, _ = content.rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            for line in whole.splitlines():
                self._take(line)
        while self._num_kept is not None and len(self._records) > self._num_kept:
            self.forget(next(iter(self._records)))

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
            self._ids.pop(_outer_name(record.request_id), None)

    def records(self) -> Iterator[Record]:
        """All that was read and not forgotten."""
        return iter(list(self._records.values()))

    def _take(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except ValueError:
            return  # torn: the disk was full; whose steps are missing shows by their numbers
        if "open" in entry:
            header = LedgerHeader(**with_figures(LedgerHeader, entry["header"]))
            name = entry["open"]
            self._records[name] = Record(
                request_id=name, header=header, has_stops=bool(entry["stops"])
            )
            self._ids[_outer_name(name)] = name
        for name, *figures in entry.get("steps", ()):
            if name in self._records:
                step = with_figures(LedgerStep, dict(zip(_STEP_FIELDS, figures, strict=True)))
                self._records[name].add(LedgerStep(**step))
        if (name := entry.get("failed")) in self._records:
            self._records[name].error = entry["error"]


def _outer_name(request_id: str) -> str:
    """Without the "-" and eight random letters that vLLM adds to what a request came with."""
    return request_id[:-9] if request_id[-9:-8] == "-" else request_id


def journal_ledgers(folder: Path | str) -> Iterable[tuple[str, Ledger]]:
    """Every request of a folder's journals that drew a token, with its ledger, by the order in
    which they began.

    Raises LedgerError for a folder without journals.
    """
    if not list(Path(folder).glob(PATTERN)):
        raise LedgerError(f"{folder} holds no journal: its files are named {PATTERN}")
    reader = JournalReader(folder)
    reader.refresh()
    return [(record.request_id, record.ledger()) for record in reader.records() if record.drawn]
