"""Options of a server's journal; nothing that it runs on is imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ...fields import check_least

MEGABYTE: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class JournalOptions:
    """The folder of a server's journal, the size of its files, and its safety."""

    ledgers: Path | None = None
    """Folder of the journal, which anchored ledgers makes ledgers of; unless given, one that is
    removed when the server ends."""
    journal_mb: int = 1000
    """Megabytes of one file of the journal, after which the next one begins."""
    fsync: bool = False
    """Have each step on the disk before its tokens leave, so that a power cut loses none that a
    client has; a step then waits for the disk."""

    def __post_init__(self) -> None:
        check_least(self, 1, "journal_mb")

    @property
    def of_writer(self) -> dict[str, Any]:
        """The arguments of a JournalWriter besides its folder."""
        return {"max_bytes": self.journal_mb * MEGABYTE, "is_synced": self.fsync}
