"""The n-grams that MemFree blocks: those of some passages, or of a corpus in little memory."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from ...durable_files import file_sha256
from .rule import Symbols


class Blocklist(Protocol):
    """N-grams of symbols, none of which a text may complete."""

    def knows(self, text: Sequence[int]) -> bool:
        """Whether an n-gram begins with the last n - 1 symbols of a text."""
        ...

    def blocked(self, text: Sequence[int], candidates: Iterable[int]) -> Sequence[int]:
        """Symbols that would complete one behind a text that it knows: of the candidates, at
        least."""
        ...


class PassageNGrams:
    """Every n-gram of a few texts: about 400 MB a million of them."""

    def __init__(self, texts: Iterable[Sequence[int]], n: int) -> None:
        found: dict[tuple[int, ...], set[int]] = {}
        for text in texts:
            for *head, last in _ngrams(text, n):
                found.setdefault(tuple(head), set()).add(last)
        self._n = n
        self._lasts: Mapping[tuple[int, ...], Sequence[int]] = {
            head: sorted(lasts) for head, lasts in found.items()
        }

    def knows(self, text: Sequence[int]) -> bool:
        return _head(text, self._n) in self._lasts

    def blocked(self, text: Sequence[int], candidates: Iterable[int]) -> Sequence[int]:
        return self._lasts[_head(text, self._n)]


class CorpusNGrams:
    """The n-grams of many texts in Bloom filters: 8 bytes each where one test in a million errs.

    All of them are found; of others, at most `false_positives` are too. The n-grams' beginnings are
    kept beside them, so that symbols are tested one by one behind a known beginning alone.
    """

    def __init__(self, texts: Iterable[Sequence[int]], n: int, false_positives: float) -> None:
        """Raises ModuleNotFoundError without rbloom."""
        self._n = n
        self._whole, self._heads = GrowingFilter(false_positives), GrowingFilter(false_positives)
        for text in texts:
            self._whole.update(_ngrams(text, n))
            self._heads.update(gram[:-1] for gram in _ngrams(text, n))

    def knows(self, text: Sequence[int]) -> bool:
        return _head(text, self._n) in self._heads

    def blocked(self, text: Sequence[int], candidates: Iterable[int]) -> Sequence[int]:
        head = _head(text, self._n)
        return [symbol for symbol in candidates if (*head, symbol) in self._whole]


FIRST_CAPACITY = 1 << 20


class GrowingFilter:
    """A set of tuples of ints that may hold a few more: Bloom filters, each twice as large as the
    one before and wrong half as often, so that together they are wrong no more than allowed."""

    def __init__(self, false_positives: float, first_capacity: int = FIRST_CAPACITY) -> None:
        try:
            from rbloom import Bloom
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "a blocklist of a corpus needs rbloom: pip install 'anchored[retrieval]'"
            ) from None
        self._new, self._rate, self._room = Bloom, false_positives, 0
        self._capacity = first_capacity
        self._filters: list[Any] = []

    def update(self, items: Iterator[tuple[int, ...]]) -> None:
        """Add items; equal ones count each time, as long as they are in no earlier filter."""
        while part := list(islice(items, max(self._room, 1))):
            new = [item for item in part if not any(item in own for own in self._filters[:-1])]
            if not self._room:
                self._rate, self._room = self._rate / 2.0, self._capacity
                self._filters.append(self._new(self._capacity, self._rate))
                self._capacity *= 2
            self._filters[-1].update(new)
            self._room -= len(new)

    def __contains__(self, item: tuple[int, ...]) -> bool:
        return any(item in own for own in self._filters)

    @property
    def num_bytes(self) -> int:
        """Memory of the filters."""
        bits: int = sum(own.size_in_bits for own in self._filters)
        return bits // 8


def _ngrams(text: Sequence[int], n: int) -> Iterator[tuple[int, ...]]:
    return zip(*(islice(text, start, None) for start in range(n)), strict=False)


def _head(text: Sequence[int], n: int) -> tuple[int, ...]:
    """Its last n - 1 symbols, fewer of a shorter text."""
    return tuple(text[max(0, len(text) - n + 1) :])


def passage_ngrams(passages: Sequence[str], symbols: Symbols, n: int) -> PassageNGrams:
    """Those of texts, as symbols; n: symbols of one."""
    return PassageNGrams(map(symbols.encode_continuation, passages), n)


_corpora: dict[tuple[Any, ...], CorpusNGrams] = {}
"""The last one only: a corpus is read once for a decoder and the ledgers that it wrote."""


def corpus_ngrams(
    corpus: Path, sha256: str, symbols: Symbols, n: int, false_positives: float
) -> CorpusNGrams:
    """Those of a JSONL file of texts, see `records`.

    Raises OSError or ValueError for a file that cannot be read so.
    """
    key = (sha256, symbols.encoding(), n, false_positives)
    if key not in _corpora:
        texts = (symbols.encode_continuation(record["text"]) for record in records(corpus))
        found = CorpusNGrams(texts, n, false_positives)
        _corpora.clear()
        _corpora[key] = found
    return _corpora[key]


def corpus_sha256(corpus: Path) -> str:
    """Of a file's bytes, which are read again where the file was written since."""
    stat = corpus.stat()
    return _sha256(corpus, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _sha256(path: Path, modified: int, size: int) -> str:
    return file_sha256(path)


def records(corpus: Path) -> Iterator[dict[str, Any]]:
    """Each line of a corpus, {"text": ..., optional "id"}; ValueError for one that is not that.

    Lines without an id are counted from 0.
    """
    number = -1
    with corpus.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("text"), str):
                raise ValueError(f'{corpus}: line {number + 1} is no JSON object with a "text"')
            yield {"text": record["text"], "id": record.get("id", number)}
    if number < 0:
        raise ValueError(f"{corpus} holds no passages")
