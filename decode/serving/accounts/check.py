"""Whether all charges are what the journals say, and each account is the sum of its charges.

Servers may run meanwhile: a text is in the journal before it is settled, so the charges are read
before the journals are; and its bound is reserved before it is in the journal, so a text without a
charge is looked for among the charges once more.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..journal import PATTERN
from ..journal_reader import CONTINUED, JournalReader, Record
from .store import QUANTUM, Charge, Store, quanta_charged

OPEN: Final = b'{"open": '
"""Begins the first line of a text."""

SCHEMA_LINE: Final = b'{"schema": '

BEGAN_NS: Final = re.compile(r"journal-(\d+)-")


@dataclass(kw_only=True, slots=True)
class Checked:
    """The result of a check of accounts."""

    problems: list[str] = field(default_factory=list)
    num_gone: int = 0
    """Charges without a record, whose files of the journals are not there."""
    num_free: int = 0
    """Texts without a charge, of servers that have charged none."""

    def lines(self) -> list[str]:
        """The report, a line for each problem and count, the verdict last."""
        lines = list(self.problems)
        if self.num_free:
            reason = "of servers that have charged none of those that are there"
            lines.append(f"texts that are charged to no account: {self.num_free}, {reason}")
        if self.num_gone:
            reason = "as the files that had their texts are not there"
            lines.append(f"charges that are not checked: {self.num_gone}, {reason}")
        if not self.problems:
            charges = "every other charge" if self.num_gone else "every charge"
            lines.append(f"{charges} has its record, and every account is the sum of its charges")
        return lines


@dataclass(slots=True)
class _Run:
    """The files of one server: a file of a journal, and those that continue it."""

    began_s: list[float] = field(default_factory=list)
    """When each file that is there began, in seconds since 1970."""
    texts: list[str] = field(default_factory=list)
    """The journal's ids of the texts that begin in them."""
    is_empty: bool = True
    """No line is of a text."""


@dataclass(frozen=True, slots=True)
class _Uncharged:
    """A text of the journal that no charge was seen of."""

    outer_id: str
    nats: float


def check(store: Store, folders: Sequence[Path]) -> Checked:
    """Compare the accounts with the journals of the servers that charge them."""
    checked = Checked(problems=_wrong_sums(store))
    charges = _by_text(store)
    names, uncharged = _compare(checked, charges, folders)
    servers = {name: charges[charged][0].server for name, charged in names.items()}
    runs = [(run, _server_of(run, servers)) for folder in folders for run in _runs(folder)]
    _note_missing(checked, charges, set(names.values()), runs)
    if uncharged:
        _note_uncharged(checked, store, uncharged, runs)
    return checked


def _compare(
    checked: Checked, charges: Mapping[str, Sequence[Charge]], folders: Sequence[Path]
) -> tuple[dict[str, str], dict[str, _Uncharged]]:
    """Note charges that are not what the journals say; returns the ids of the charges, and the
    texts without one, each by the journals' ids of the texts."""
    names: dict[str, str] = {}
    uncharged: dict[str, _Uncharged] = {}
    for record in _records(folders):
        name = record.request_id if record.request_id in charges else record.outer_id
        if name in charges:
            names[record.request_id] = name
            checked.problems += _differences(charges[name], record)
        else:
            uncharged[record.request_id] = _Uncharged(record.outer_id, _nats(record))
    return names, uncharged


def _wrong_sums(store: Store) -> list[str]:
    problems = []
    for state in store.states():
        for name, (kept, charged) in store.sums(state.account).items():
            if kept != charged:
                problems.append(
                    f"{state.account}: {name} is {kept * QUANTUM:.9f} nats, and its charges add up "
                    f"to {charged * QUANTUM:.9f}, off by {kept - charged} quanta"
                )
    return problems


def _by_text(store: Store) -> dict[str, list[Charge]]:
    charges: dict[str, list[Charge]] = {}
    for charge in store.charges():
        charges.setdefault(charge.request_id, []).append(charge)
    return charges


def _records(folders: Sequence[Path]) -> Iterator[Record]:
    for folder in folders:
        yield from JournalReader(folder).ended_records()


def _nats(record: Record) -> float:
    return math.fsum(step.spend for step in record.drawn)


def _differences(charges: Sequence[Charge], record: Record) -> list[str]:
    """The problems of the charges of a text, a line each."""
    nats, problems = _nats(record), []
    for charge in charges:
        drawn = quanta_charged(charge.reserved, nats if math.isfinite(nats) else None)
        # The whole bound is charged where the journal may lack the end of the text.
        if charge.spent not in (None, drawn, charge.reserved):
            journal_has = f"the journal has {drawn * QUANTUM:.9f}"
            problems.append(f"{_charged(charge)}, and {journal_has}")
    return problems


def _charged(charge: Charge) -> str:
    nats = (charge.spent or 0) * QUANTUM
    return f"{charge.request_id} in {charge.account}: {nats:.9f} nats are charged"


def _note_missing(
    checked: Checked,
    charges: Mapping[str, Sequence[Charge]],
    recorded: set[str],
    runs: Sequence[tuple[_Run, str]],
) -> None:
    """Note the charges whose texts no journal has, unless they are right without one."""
    settled = [charge for each in charges.values() for charge in each if charge.spent is not None]
    witnesses = _witnesses(settled, runs)
    for charge in settled:
        # The whole bound of a text that had not begun is charged after a power cut or a full disk.
        if charge.request_id in recorded or charge.spent == charge.reserved:
            continue
        since = min(witnesses.get(server, math.inf) for server in (charge.server, ""))
        if (charge.settled_s or 0.0) < since:
            checked.num_gone += 1
        elif charge.spent:  # else nothing was drawn, or as much was given back
            checked.problems.append(f"{_charged(charge)}, and no journal has it")


def _witnesses(settled: Sequence[Charge], runs: Sequence[tuple[_Run, str]]) -> dict[str, float]:
    """From when on the files of each server would have the texts that it has settled, in seconds
    since 1970; by "" those of files without a text, which may be of any server."""
    first_s: dict[str, float] = {}
    for charge in settled:
        at_s = min(charge.settled_s or 0.0, first_s.get(charge.server, math.inf))
        first_s[charge.server] = at_s
    witnesses: dict[str, float] = {}
    for run, server in runs:
        if not (server or run.is_empty):
            continue  # it has no accounts, or all of its texts began in files that are gone
        began_s = run.began_s
        if first_s.get(server, math.inf) < began_s[0]:
            # Files before these were deleted, and with them the beginnings of texts that ended in
            # the first one that is there.
            began_s = [*began_s[1:], math.inf]
        witnesses[server] = min(began_s[0], witnesses.get(server, math.inf))
    return witnesses


def _note_uncharged(
    checked: Checked,
    store: Store,
    uncharged: Mapping[str, _Uncharged],
    runs: Sequence[tuple[_Run, str]],
) -> None:
    """Note the texts that were not charged by a server that charges others: one without accounts
    may write into the same folder."""
    charged = {charge.request_id for charge in store.charges()}
    for run, server in runs:
        for name in run.texts:
            text = uncharged.get(name)
            if text is None or name in charged or text.outer_id in charged:
                continue
            if server:
                reason = "and no account is charged"
                checked.problems.append(f"{name}: the journal has {text.nats:.9f} nats, {reason}")
            else:
                checked.num_free += 1


def _server_of(run: _Run, servers: Mapping[str, str]) -> str:
    """The server that has charged a run's texts, "" for none."""
    return next((servers[name] for name in run.texts if name in servers), "")


def _runs(folder: Path) -> list[_Run]:
    """The runs of a folder's journals, in the order they began."""
    runs: list[_Run] = []
    continued: dict[str, _Run] = {}
    for path in sorted(folder.glob(PATTERN)):
        if (run := continued.get(path.name)) is None:
            runs.append(run := _Run())
        began = BEGAN_NS.match(path.name)
        run.began_s.append(int(began[1]) / 1e9 if began else 0.0)
        for line in _lines(path):
            entry = _entry(line)
            if "open" in entry:
                run.texts.append(entry["open"])
            if "continued" in entry:
                continued[entry["continued"]] = run
            run.is_empty &= line.startswith((SCHEMA_LINE, CONTINUED))
    return runs


def _lines(path: Path) -> Iterator[bytes]:
    with suppress(FileNotFoundError), path.open("rb") as file:  # its operator has moved it away
        yield from file


def _entry(line: bytes) -> dict[str, Any]:
    """A line that begins a text or names the next file, {} for others."""
    if line.startswith((OPEN, CONTINUED)):
        with suppress(ValueError):  # torn: the disk was full
            entry: dict[str, Any] = json.loads(line)
            return entry
    return {}
