"""The passage nearest to a text in words: BM25 over a corpus, indexed once on disk."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bm25s

from ...decode.rules.memfree import records
from ...durable_files import file_sha256, new_folder
from .passages import Passage, check_stamp, write_stamp

SCHEMA = "anchored-bm25/1"


class WordIndex:
    """BM25 (Lucene's weights, k1 1.5, b 0.75) over the texts of a JSONL file, one text a line."""

    def __init__(self, corpus: Path, folder: Path, *, progress: bool = False) -> None:
        """Open the index in `folder`; it is made there, whole or not at all, unless it exists.

        corpus: JSON lines {"text": ..., optional "id"}. Raises ValueError for a line that is no
        such record, and where the folder holds something else, or the index of another corpus.
        """
        made_from = {"schema": SCHEMA, "corpus": file_sha256(corpus)}
        if folder.exists():
            check_stamp(folder, made_from)
        else:
            texts = list(records(corpus))
            bm25 = bm25s.BM25()
            words = _words([own["text"] for own in texts], progress)
            if not any(words):
                raise ValueError(f"{corpus} holds no words of two letters and more to search by")
            bm25.index(words, show_progress=progress)
            with new_folder(folder) as partial:
                bm25.save(partial, corpus=texts, show_progress=False)
                write_stamp(partial, made_from)
        self._bm25 = bm25s.BM25.load(folder, load_corpus=True, mmap=True, show_progress=False)

    def search(self, queries: Sequence[str]) -> list[Passage]:
        """The best passage for each query; of equal ones any."""
        return [own for (own,) in self.best(queries, 1)]

    def best(self, queries: Sequence[str], count: int) -> list[list[Passage]]:
        """The best passages for each query, `count` or all that there are, the best first."""
        found, scores = self._bm25.retrieve(
            _words(queries, False), k=min(count, len(self._bm25.corpus)), show_progress=False
        )
        return [
            [
                Passage(text=own["text"], id=own["id"], score=float(score))
                for own, score in zip(row, row_scores, strict=True)
            ]
            for row, row_scores in zip(found, scores, strict=True)
        ]


def _words(texts: Sequence[str], progress: bool) -> Any:
    """Lower-cased words of two letters and more, without the commonest English ones."""
    return bm25s.tokenize(list(texts), show_progress=progress, return_ids=False)
