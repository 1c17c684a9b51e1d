"""The passages of a corpus nearest to a text: by its words (BM25), or by its meaning (embeddings).

An index is a folder with a stamp of its inputs. Each kind needs another extra, which is imported
when an index is opened.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from ...durable_files import file_sha256, files_sha256, new_file, new_folder, write_durably
from ...inputs import records
from ..segmentation import search_terms

STAMP: Final = "passages.json"
_ENCODER_FILES: Final = (".safetensors", ".bin", ".json")
"""Endings of an encoder's files that decide its embeddings: weights, configs, pooling, tokens."""
WORDS_SCHEMA: Final = "anchored-bm25/3"
DENSE_SCHEMA: Final = "anchored-dense/1"
INSTRUCTION: Final = (
    "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:"
)
"""Source: paper, appendix "Baseline details", for gte-Qwen2-1.5B-instruct."""
PART_SIZE: Final = 16384
"""Passages whose embeddings are written at once: all that an interrupted run repeats, 100 MB of
1,536 numbers each."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One text of a corpus with its score for a query."""

    text: str
    id: str | int
    """The corpus's id, else the line, counted from 0; see `inputs.records`."""
    score: float
    """BM25 of the query's words, or the cosine of two embeddings."""


class PassageIndex(Protocol):
    """Finds the best passage of a corpus for each query; None if none is related."""

    def search(self, queries: Sequence[str]) -> Sequence[Passage | None]: ...


def encoder_identity(encoder: Path | str) -> str:
    """An encoder's identity anywhere: the sha256 (hex) of its folder's files, a Hub id as it is."""
    folder = Path(encoder).expanduser()
    if not folder.is_dir():
        return str(encoder)
    files = sorted(path for path in folder.rglob("*") if path.suffix in _ENCODER_FILES)
    names = [path.relative_to(folder).as_posix() for path in files]
    listed = json.dumps(list(zip(names, files_sha256(files), strict=True)))
    return hashlib.sha256(listed.encode()).hexdigest()


def _check_stamp(folder: Path, made_from: dict[str, Any]) -> None:
    """Raise ValueError unless the folder is an index of the same inputs."""
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


class WordIndex:
    """BM25 (Lucene's weights, k1 1.5, b 0.75) over the texts of a JSONL file, one text a line."""

    def __init__(self, corpus: Path, folder: Path, *, progress: bool = False) -> None:
        """Open the index in `folder`; it is made there, whole or not at all, unless it exists.
        corpus: JSON lines {"text": ..., optional "id"}. Raises ValueError for a line that is no
        such record, and for a folder of something else, or of an index of another corpus."""
        import bm25s

        made_from = {"schema": WORDS_SCHEMA, "corpus": file_sha256(corpus)}
        if folder.exists():
            _check_stamp(folder, made_from)
        else:
            texts = list(records(corpus))
            bm25 = bm25s.BM25()
            terms = _terms([record["text"] for record in texts])
            if not any(terms):
                raise ValueError(f"{corpus} holds no words of two letters and more to search by")
            bm25.index(terms, show_progress=progress)
            with new_folder(folder) as partial:
                bm25.save(partial, corpus=texts, show_progress=False)
                write_durably(partial / STAMP, json.dumps(made_from))
        self._bm25 = bm25s.BM25.load(folder, load_corpus=True, mmap=True, show_progress=False)

    def search(self, queries: Sequence[str]) -> list[Passage | None]:
        """The best passage for each query; of equal ones any, None if none shares a word."""
        return [best[0] if best else None for best in self.best(queries, 1)]

    def best(self, queries: Sequence[str], count: int) -> list[list[Passage]]:
        """The passages that share words with each query, at most `count`, the best first."""
        documents, scores = self._bm25.retrieve(
            _terms(queries), k=min(count, len(self._bm25.corpus)), show_progress=False
        )
        return [
            [_passage(*hit) for hit in zip(row, row_scores, strict=True) if hit[1] > 0]
            for row, row_scores in zip(documents, scores, strict=True)
        ]


def _terms(texts: Sequence[str]) -> Any:
    """`search_terms` of each text, without the commonest English words."""
    import bm25s

    joined = [" ".join(search_terms(text)) for text in texts]
    return bm25s.tokenize(joined, token_pattern=r"\S+", show_progress=False, return_ids=False)


class DenseIndex:
    """Cosines of sentence-transformers embeddings over the texts of a JSONL file, one text a line.
    The search is exact: FAISS compares each query with all passages, a part at a time, so that only
    one part of the embeddings is in memory. Source: paper, appendix "Baseline details"."""

    def __init__(
        self,
        corpus: Path,
        folder: Path,
        encoder: Path | str,
        *,
        instruction: str = INSTRUCTION,
        progress: bool = False,
    ) -> None:
        """Open the index in `folder`, computing missing parts. encoder: a sentence-transformers
        folder or Hub id, with its pooling. instruction: text before queries alone. Raises
        ValueError as `WordIndex` does, and for an index of another encoder; FileNotFoundError for
        an encoder that cannot be loaded."""
        from sentence_transformers import SentenceTransformer

        made_from = {
            "schema": DENSE_SCHEMA,
            "corpus": file_sha256(corpus),
            "encoder": encoder_identity(encoder),
            "part_size": PART_SIZE,
        }
        # 1. What is wrong with the index or the corpus is named before anything costly begins.
        if is_there := folder.exists():
            _check_stamp(folder, made_from)
        else:
            for _ in records(corpus):
                pass
        # 2. An encoder that does not load leaves no index.
        self._corpus, self._instruction = corpus, instruction
        try:
            self._model = SentenceTransformer(str(encoder))
        except OSError as error:
            reason = str(error).partition("\n")[0]
            raise FileNotFoundError(f"encoder {encoder} cannot be loaded: {reason}") from error
        if not is_there:
            folder.mkdir(parents=True)
            write_durably(folder / STAMP, json.dumps(made_from))
        self._parts = list(self._computed(folder, progress))

    def search(self, queries: Sequence[str]) -> list[Passage]:
        """The best passage for each query; of equal ones the first."""
        import faiss

        vectors = self._embedded([self._instruction + query for query in queries], progress=False)
        best = np.full(len(queries), -np.inf, dtype=np.float32)
        indices = np.zeros(len(queries), dtype=np.int64)
        for number, part in enumerate(self._parts):
            scores, rows = faiss.knn(vectors, np.load(part), 1, metric=faiss.METRIC_INNER_PRODUCT)
            is_better = scores[:, 0] > best
            best[is_better] = scores[is_better, 0]
            indices[is_better] = number * PART_SIZE + rows[is_better, 0]
        # The corpus is read once more rather than kept in memory.
        lines: list[int] = indices.tolist()
        numbered, best_lines = enumerate(records(self._corpus)), set(lines)
        texts = {line: record for line, record in numbered if line in best_lines}
        return [_passage(texts[line], score) for line, score in zip(lines, best, strict=True)]

    def _computed(self, folder: Path, progress: bool) -> Iterator[Path]:
        """Files of embeddings, (passages, dimension) float32 with rows of length 1."""
        texts = records(self._corpus)
        parts = iter(lambda: list(islice(texts, PART_SIZE)), [])
        for number, part in enumerate(tqdm(parts, "embed", unit="part", disable=not progress)):
            path = folder / f"part-{number:05d}.npy"
            if not path.exists():
                vectors = self._embedded([record["text"] for record in part], progress)
                with new_file(path) as partial, partial.open("wb") as file:
                    np.save(file, vectors)
            yield path

    def _embedded(self, texts: list[str], progress: bool) -> NDArray[np.float32]:
        vectors = self._model.encode(
            texts, normalize_embeddings=True, show_progress_bar=progress, convert_to_numpy=True
        )
        return np.ascontiguousarray(vectors, dtype=np.float32)


def _passage(record: dict[str, Any], score: Any) -> Passage:
    return Passage(text=record["text"], id=record["id"], score=float(score))
