"""The passage nearest to a text in meaning: embeddings of a corpus, compared one by one."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from tqdm import tqdm

from ...decode.rules.memfree import records
from ...durable_files import file_sha256, new_file
from .passages import Passage, check_stamp, write_stamp

SCHEMA = "anchored-dense/1"
INSTRUCTION = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
"""Source: paper, appendix "Baseline details", for gte-Qwen2-1.5B-instruct."""

PART_SIZE = 16384
"""Passages whose embeddings are written at once: what an interrupted run computes again at most,
and 100 MB of 1,536 numbers each."""


class DenseIndex:
    """Cosines of sentence-transformers embeddings over the texts of a JSONL file, one text a line.

    The search is exact: FAISS compares each query with all passages, a part at a time, so that only
    one part of the embeddings is in memory. Source: paper, appendix "Baseline details".
    """

    def __init__(
        self,
        corpus: Path,
        folder: Path,
        encoder: Path | str,
        *,
        instruction: str = INSTRUCTION,
        progress: bool = False,
    ) -> None:
        """Open the index in `folder`, computing the parts that are not there.

        encoder: a sentence-transformers folder or Hub id; its own pooling is used. instruction:
        stands before queries alone. Raises ValueError as `bm25.WordIndex` does, and for an index
        of another encoder.
        """
        made_from = {
            "schema": SCHEMA,
            "corpus": file_sha256(corpus),
            "encoder": str(encoder),
            "part_size": PART_SIZE,
        }
        if folder.exists():
            check_stamp(folder, made_from)
        else:
            for _ in records(corpus):  # a bad line is named before anything costly begins
                pass
            folder.mkdir(parents=True)
            write_stamp(folder, made_from)
        self._corpus, self._instruction = corpus, instruction
        self._model = SentenceTransformer(str(encoder))
        self._parts = list(self._computed(folder, progress))

    def search(self, queries: Sequence[str]) -> list[Passage]:
        """The best passage for each query; of equal ones the first."""
        vectors = self._embedded([self._instruction + query for query in queries], progress=False)
        best = np.full(len(queries), -np.inf, dtype=np.float32)
        places = np.zeros(len(queries), dtype=np.int64)
        for number, part in enumerate(self._parts):
            scores, found = faiss.knn(vectors, np.load(part), 1, metric=faiss.METRIC_INNER_PRODUCT)
            is_better = scores[:, 0] > best
            best[is_better] = scores[is_better, 0]
            places[is_better] = number * PART_SIZE + found[is_better, 0]
        texts = self._records_at(set(places.tolist()))
        return [
            Passage(text=texts[place]["text"], id=texts[place]["id"], score=float(score))
            for place, score in zip(places.tolist(), best, strict=True)
        ]

    def _computed(self, folder: Path, progress: bool) -> Iterator[Path]:
        """Files of embeddings, (passages, dimension) float32 with rows of length 1."""
        texts = records(self._corpus)
        parts = iter(lambda: list(islice(texts, PART_SIZE)), [])
        for number, part in enumerate(tqdm(parts, "embed", unit="part", disable=not progress)):
            path = folder / f"part-{number:05d}.npy"
            if not path.exists():
                vectors = self._embedded([own["text"] for own in part], progress)
                with new_file(path) as partial, partial.open("wb") as file:
                    np.save(file, vectors)
            yield path

    def _embedded(self, texts: list[str], progress: bool) -> NDArray[np.float32]:
        vectors = self._model.encode(
            texts, normalize_embeddings=True, show_progress_bar=progress, convert_to_numpy=True
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)

    def _records_at(self, places: set[int]) -> dict[int, dict[str, Any]]:
        """Lines of the corpus, which is read once more rather than kept in memory."""
        last = max(places, default=-1)
        numbered = enumerate(islice(records(self._corpus), last + 1))
        return {place: record for place, record in numbered if place in places}
