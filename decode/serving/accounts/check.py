"""Whether all charges are what the journals say, and each account is the sum of its charges.

Servers may run meanwhile: a text is in the journal before it is settled, so the charges are read
before the journals are; and its bound is reserved before it is in the journal, so a text without a
charge is looked for among the charges once more.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from ..journal_reader import JournalReader, Record
from .store import QUANTUM, Charge, Store, quanta_charged


@dataclass(kw_only=True, slots=True)
class Checked:
    """The result of a check of accounts."""

    problems: list[str] = field(default_factory=list)
    num_unseen: int = 0
    """Charges whose texts are in no file that is there."""
    num_free: int = 0
    """Texts without a charge, in files none of whose texts is charged."""

    def lines(self) -> list[str]:
        """The report, a line for each problem and count, the verdict last."""
        lines = list(self.problems)
        if self.num_free:
            lines.append(f"texts of servers without accounts, which none charges: {self.num_free}")
        if self.num_unseen:
            lines.append(f"charges of texts that no file here has: {self.num_unseen}")
        if not self.problems:
            lines.append("all charges of texts here are right, and so are the sums of accounts")
        return lines


def check(store: Store, folders: Sequence[Path]) -> Checked:
    """Compare the accounts with the journals of the servers that charge them."""
    checked = Checked(problems=list(_wrong_sums(store)))
    # 1. Each charge against its text.
    charges = _by_text(store)
    unseen = {name for name, each in charges.items() if any(map(_needs_text, each))}
    charged_files: set[str] = set()
    uncharged: list[Record] = []
    for folder in folders:
        for record in JournalReader(folder).ended_records():
            name = record.request_id if record.request_id in charges else record.outer_id
            if name in charges:
                checked.problems += _differences(charges[name], record)
                charged_files.add(record.file)
                unseen.discard(name)
            else:
                uncharged.append(record)
    # 2. Texts without a charge, beside others that have one: those charges may be newer.
    charges = _by_text(store) if uncharged else charges
    for record in uncharged:
        if record.request_id in charges or record.outer_id in charges:
            continue
        if record.file in charged_files:
            nats = f"the journal has {_nats(record):.9f} nats, and no account is charged"
            checked.problems.append(f"{record.request_id}: {nats}")
        else:
            checked.num_free += 1
    checked.num_unseen = len(unseen)
    return checked


def _wrong_sums(store: Store) -> Iterator[str]:
    for state in store.states():
        for name, (kept, charged) in store.sums(state.account).items():
            if kept != charged:
                yield (
                    f"{state.account}: {name} is {kept * QUANTUM:.9f} nats, and its charges add up "
                    f"to {charged * QUANTUM:.9f}, off by {kept - charged} quanta"
                )


def _by_text(store: Store) -> Mapping[str, list[Charge]]:
    return {name: list(each) for name, each in groupby(store.charges(), lambda c: c.request_id)}


def _needs_text(charge: Charge) -> bool:
    """Nothing and the whole bound are right without a text too: of one that did not begin, or of
    which nobody knows."""
    return charge.spent not in (None, 0, charge.reserved)


def _nats(record: Record) -> float:
    return math.fsum(step.spend for step in record.drawn)


def _differences(charges: Sequence[Charge], record: Record) -> Iterator[str]:
    nats = _nats(record)
    for charge in charges:
        drawn = quanta_charged(charge.reserved, nats if math.isfinite(nats) else None)
        # The whole bound is charged where the journal may lack the end of the text.
        if charge.spent not in (None, drawn, charge.reserved):
            yield (
                f"{charge.request_id} in {charge.account}: {charge.spent * QUANTUM:.9f} nats are "
                f"charged, and the journal has {drawn * QUANTUM:.9f}"
            )
