"""The command that makes ledgers of a server's journal."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from .files import check_input, check_outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class LedgersConfig:
    """Ledgers of a journal: anchored ledgers --journal DIR --out LEDGERS

    One file a request, named by its id, for anchored verify.
    """

    journal: Path
    """Folder that anchored vllm serve --ledgers wrote."""
    out: Path | None = None
    """Folder for the ledgers; ledgers in the journal's unless given."""
    overwrite: bool = False
    """Replace ledgers that exist."""

    def __post_init__(self) -> None:
        check_input(self.journal, "folder")


def run(config: LedgersConfig) -> int:
    """Write every ledger, print one line of what they are; returns the exit status."""
    from anchored.decode.vllm.journal import journal_ledgers

    folder = config.out or config.journal / "ledgers"
    found = list(journal_ledgers(config.journal))
    paths = [folder / f"{_file_name(name)}.jsonl" for name, _ in found]
    check_outputs(*paths, overwrite=config.overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    for path, (_, ledger) in zip(paths, found, strict=True):
        ledger.save(path)
    num_certified = sum(ledger.certified for _, ledger in found)
    print(f"{len(found)} ledgers in {folder}, {num_certified} certified")
    return 0


def _file_name(request_id: str) -> str:
    """An id is the caller's, offline: a path would leave the folder. Other ids, other names."""
    plain = re.sub(r"[^\w.-]", "_", request_id)
    if plain == request_id:
        return plain
    return f"{plain}-{hashlib.sha256(request_id.encode()).hexdigest()[:16]}"
