"""Whether all charges are what the journals say, and each account is the sum of its charges.

Servers may run meanwhile: a text is in the journal before it is settled, so the charges are read
before the journals are; and its bound is reserved before it is in the journal, so a text without a
charge is looked for among the charges once more.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from ..journal_reader import JournalReader, Record
from .store import QUANTUM, Charge, Store, quanta_charged


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check, in lines: problems, and how many charges and texts have no partner."""

    problems: list[str]
    counts: list[str]

    def lines(self) -> list[str]:
        """The report, the verdict last."""
        right = "all charges of texts here are right, and so are the sums of accounts"
        return [*self.problems, *self.counts, *([] if self.problems else [right])]


def check(store: Store, folders: Sequence[Path]) -> Checked:
    """Compare the accounts with the journals of the servers that charge them."""
    problems, uncharged = list(_wrong_sums(store)), []
    charges = _by_text(store)
    for record in chain.from_iterable(JournalReader(path).ended_records() for path in folders):
        if record.request_id in charges:
            problems += _differences(charges.pop(record.request_id), record)
        else:
            uncharged.append(record.request_id)
    begun = _by_text(store) if uncharged else {}
    num_free = sum(name not in begun for name in uncharged)
    num_unseen = sum(any(map(_needs_text, each)) for each in charges.values())
    counts = {
        "texts that no account is charged for, as of servers without accounts": num_free,
        "charges of texts that no file here has": num_unseen,
    }
    return Checked(problems, [f"{what}: {count}" for what, count in counts.items() if count])


def _wrong_sums(store: Store) -> Iterator[str]:
    for state in store.states():
        for name, (kept, charged) in store.sums(state.account).items():
            if kept != charged:
                yield (
                    f"{state.account}: {name} is {kept * QUANTUM:.9f} nats, and its charges add up "
                    f"to {charged * QUANTUM:.9f}, off by {kept - charged} quanta"
                )


def _by_text(store: Store) -> dict[str, list[Charge]]:
    return {name: list(each) for name, each in groupby(store.charges(), lambda c: c.request_id)}


def _needs_text(charge: Charge) -> bool:
    """Nothing and the whole bound are right without a text too: of one that did not begin, or of
    which nobody knows."""
    return charge.spent not in (None, 0, charge.reserved)


def _differences(charges: Sequence[Charge], record: Record) -> Iterator[str]:
    nats = math.fsum(step.spend for step in record.drawn)
    for charge in charges:
        drawn = quanta_charged(charge.reserved, nats if math.isfinite(nats) else None)
        # The whole bound is charged where the journal may lack the end of the text.
        if charge.spent not in (None, drawn, charge.reserved):
            yield (
                f"{charge.request_id} in {charge.account}: {charge.spent * QUANTUM:.9f} nats are "
                f"charged, and the journal has {drawn * QUANTUM:.9f}"
            )
