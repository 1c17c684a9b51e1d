"""The passages of a corpus, and what an index of them says it was made from."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ...durable_files import write_durably

STAMP = "passages.json"


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of a corpus, found for a query."""

    text: str
    id: str | int
    """As the corpus has it, else its line, counted from 0; see `blocklist.records`."""
    score: float
    """BM25 of the query's words (0 where none of them occurs), or the cosine of two embeddings."""


class PassageIndex(Protocol):
    """Finds the best passage of a corpus for each query."""

    def search(self, queries: Sequence[str]) -> list[Passage]: ...


def write_stamp(folder: Path, made_from: dict[str, Any]) -> None:
    """Say what an index is made from, as JSON values."""
    write_durably(folder / STAMP, json.dumps(made_from))


def check_stamp(folder: Path, made_from: dict[str, Any]) -> None:
    """Raise ValueError unless the folder is an index that was made from just this."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ValueError(f"{folder} exists and is no index of passages") from None
    for name, value in made_from.items():
        if stamp.get(name) != value:
            raise ValueError(
                f"{folder} was made with another {name} ({stamp.get(name)}, here {value}): "
                "name a new folder"
            )
