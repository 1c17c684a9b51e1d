"""Accounts compared with journals: texts of servers that ended without settling are charged, and
all charges are checked.

A server holds the lock of a file in its journal's folder for as long as it runs, and the system
ends the lock with the process. Whoever gets that lock reads the journal, in which every token is
that a client may have seen: it is written before a token leaves. What cannot be known is charged
whole.

A check compares all charges with the journals while servers run: a text is in the journal before it
is settled, so the charges are read first; and its bound is reserved before it is in the journal, so
a text without a charge is looked for among the charges once more.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import chain, groupby
from pathlib import Path
from typing import Final

from ....durable_files import locked
from ..journal import PATTERN
from ..journal_reader import JournalReader, Record
from .store import QUANTUM, Charge, Server, Store, quanta_charged

logger = logging.getLogger(__name__)

BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def lock_of(folder: Path | str, server: str) -> Path:
    """The file whose lock a server holds."""
    return Path(folder) / f"server-{server}.lock"


def boot_of_system() -> str:
    """A name of this run of the system, "" where it has none."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def recover(store: Store) -> None:
    """Settle the texts of servers that run no more, on the machine that has their journals.

    A server whose folder is not here is left alone, with what it reserved: it may run elsewhere.
    """
    for server in store.servers():
        path = lock_of(server.folder, server.server)
        if not path.exists():
            continue
        with locked(path, waits=False) as is_free:
            if not is_free:
                continue
            _settle(store, server)
            if store.leave(server.server):
                path.unlink(missing_ok=True)


def settle_whole(store: Store, name: str) -> None:
    """Charge the open texts of a server that is gone for good their whole bounds; ValueError for
    one that is unknown or runs here."""
    servers = {each.server: each for each in store.servers()}
    if (server := servers.get(name)) is None:
        raise ValueError(f"the server must be one of {', '.join(servers) or 'none'}, got {name}")
    path = lock_of(server.folder, name)
    with locked(path, waits=False) if path.exists() else nullcontext(True) as is_free:
        if not is_free:
            raise ValueError(f"the server {name} runs: it settles its texts by itself")
        store.settle(dict.fromkeys(store.open_texts(name)))
        store.leave(name)
    path.unlink(missing_ok=True)


def _settle(store: Store, server: Server) -> None:
    open_texts = store.open_texts(server.server)
    if not open_texts:
        return
    # Files that were there before it began have none of its texts, however many they are.
    before = server.files.splitlines()
    reader = JournalReader(server.folder, skipped=before, only=open_texts.keys())
    # After a power cut the end of a journal may be missing, unless each line was synced; and a
    # journal that was moved away says nothing.
    is_whole = server.is_synced or server.boot == boot_of_system() != ""
    is_known = is_whole and any(p.name not in before for p in Path(server.folder).glob(PATTERN))
    reader.refresh()
    spent: dict[str, float | None] = {}
    for request_id in open_texts:
        record = reader.find(request_id)
        # Without a record nothing was drawn, as the journal is written first.
        drawn = 0.0 if record is None else record.spent
        spent[request_id] = drawn if is_known else None
    store.settle(spent)
    logger.warning(
        "a server ended without settling %d texts: %s",
        len(open_texts),
        "they are charged by its journal" if is_known else "they are charged whole",
    )


def check(store: Store, folders: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Compare the accounts with the journals of the servers that charge them; lines that name
    problems, and how many charges and texts have no partner."""
    problems, uncharged = list(_wrong_sums(store)), []
    charges = _by_text(store)
    for record in chain.from_iterable(JournalReader(path).ended_records() for path in folders):
        if record.request_id in charges:
            problems += _differences(charges.pop(record.request_id), record)
        else:
            uncharged.append(record.request_id)
    begun = _by_text(store) if uncharged else {}
    num_free = sum(name not in begun for name in uncharged)
    num_unseen = sum(any(map(_needs_text, of_text)) for of_text in charges.values())
    counts = {
        "texts that no account is charged for, as of servers without accounts": num_free,
        "charges of texts that no file here has": num_unseen,
    }
    return problems, [f"{what}: {count}" for what, count in counts.items() if count]


def _wrong_sums(store: Store) -> Iterator[str]:
    for state in store.states():
        for name, (kept, charged) in store.sums(state.account).items():
            if kept != charged:
                yield (
                    f"{state.account}: {name} is {kept * QUANTUM:.9f} nats, and its charges add up "
                    f"to {charged * QUANTUM:.9f}, off by {kept - charged} quanta"
                )


def _by_text(store: Store) -> dict[str, list[Charge]]:
    by_text = groupby(store.charges(), lambda charge: charge.request_id)
    return {name: list(charges) for name, charges in by_text}


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
