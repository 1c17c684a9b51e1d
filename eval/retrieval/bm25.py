"""Passages of a corpus that are nearest to a text in words: BM25 over a folder on disk."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bm25s

from ...durable_files import file_sha256, new_folder, write_durably

STAMP = "passages.json"
SCHEMA = "anchored-bm25/1"


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of a corpus, found for a query."""

    text: str
    id: str | int
    """As the corpus has it, else its line, counted from 0."""
    score: float
    """BM25 of the query's words; 0 where none of them occurs in the corpus."""


class PassageIndex:
    """BM25 (Lucene's weights, k1 1.5, b 0.75) over the texts of a JSONL file, one text a line."""

    def __init__(self, folder: Path) -> None:
        """Open what `build` wrote; ValueError for a folder of another kind."""
        try:
            stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            stamp = {}
        if stamp.get("schema") != SCHEMA:
            raise ValueError(f"{folder} is no index of passages ({SCHEMA})")
        self.corpus_sha256: str = stamp["corpus_sha256"]
        self._bm25 = bm25s.BM25.load(folder, load_corpus=True, mmap=True, show_progress=False)

    @classmethod
    def build(cls, corpus: Path, folder: Path, *, progress: bool = False) -> "PassageIndex":
        """The index of a corpus, made in `folder` unless it stands there already, whole or not at
        all.

        corpus: JSON lines {"text": ..., optional "id"}. Raises ValueError for a line that is no
        such record, and where the folder holds the index of another corpus.
        """
        sha256 = file_sha256(corpus)
        if folder.exists():
            index = cls(folder)
            if index.corpus_sha256 != sha256:
                raise ValueError(
                    f"{folder} indexes another corpus than {corpus}: name a new folder"
                )
            return index
        records = list(_records(corpus))
        if not records:
            raise ValueError(f"{corpus} holds no passages")
        bm25 = bm25s.BM25()
        bm25.index(_words([own["text"] for own in records], progress), show_progress=progress)
        with new_folder(folder) as partial:
            bm25.save(partial, corpus=records, show_progress=False)
            write_durably(partial / STAMP, json.dumps({"schema": SCHEMA, "corpus_sha256": sha256}))
        return cls(folder)

    def search(self, queries: Sequence[str]) -> list[Passage]:
        """The best passage for each query; of equal ones any."""
        found, scores = self._bm25.retrieve(_words(queries, False), k=1, show_progress=False)
        return [
            Passage(text=own["text"], id=own["id"], score=float(score))
            for own, score in zip(found[:, 0], scores[:, 0], strict=True)
        ]


def _words(texts: Sequence[str], progress: bool) -> Any:
    """Lower-cased words of two letters and more, without the commonest English ones."""
    return bm25s.tokenize(list(texts), show_progress=progress, return_ids=False)


def _records(corpus: Path) -> Iterator[dict[str, Any]]:
    with corpus.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise ValueError(f'{corpus}: line {number + 1} is no JSON object with a "text"')
            yield {"text": record["text"], "id": record.get("id", number)}
