"""Servers that have ended without settling: their journals say what their texts spent.

A server holds the lock of a file in its journal's folder for as long as it runs, and the system
ends the lock with the process. Whoever gets that lock reads the journal, in which every token is
that a client may have seen: it is written before a token leaves. What cannot be known is charged
whole.
"""

import logging
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from ....durable_files import locked
from ..journal import PATTERN
from ..journal_reader import JournalReader
from .store import Server, Store

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
