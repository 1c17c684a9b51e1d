"""MemFree: the risky model, never completing an n-gram of a blocklist."""

import json
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ...durable_files import file_sha256
from ..settings import checked_texts, real_number, whole_number
from .rule import StepInputs, Symbols
from .unbounded import Unbounded


class PassageNGrams:
    """Every n-gram of a few texts, none of which a text may complete: 400 MB a million of them."""

    def __init__(self, texts: Iterable[Sequence[int]], n: int) -> None:
        lasts_of: dict[tuple[int, ...], set[int]] = {}
        for text in texts:
            for *head, last in _ngrams(text, n):
                lasts_of.setdefault(tuple(head), set()).add(last)
        self._n = n
        self._lasts: Mapping[tuple[int, ...], Sequence[int]] = {
            head: sorted(lasts) for head, lasts in lasts_of.items()
        }

    def knows(self, text: Sequence[int]) -> bool:
        """Whether an n-gram begins with the last n - 1 symbols of a text."""
        return _head(text, self._n) in self._lasts

    def blocked(self, text: Sequence[int], candidates: Iterable[int]) -> Sequence[int]:
        """Symbols that would complete one behind a text that it knows: of the candidates, at
        least."""
        return self._lasts[_head(text, self._n)]


class CorpusNGrams:
    """The n-grams of many texts in Bloom filters: 7 bytes each where one test in a million errs.

    All of them are found; of others, at most `false_positives` are too. The n-grams' beginnings are
    kept beside them, so that symbols are tested one by one behind a known beginning alone.
    """

    def __init__(self, texts: Iterable[Sequence[int]], n: int, false_positives: float) -> None:
        """Raises ModuleNotFoundError without rbloom."""
        try:
            from rbloom import Bloom
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                "a blocklist of a corpus needs rbloom: pip install 'anchored[retrieval]'"
            ) from None
        # Filters have one size, so the n-grams are counted first; a symbol takes 4 bytes meanwhile.
        symbols = [array("i", text) for text in texts]
        size = max(1, sum(max(0, len(text) - n + 1) for text in symbols))
        self._n = n
        self._whole, self._heads = Bloom(size, false_positives), Bloom(size, false_positives)
        for text in symbols:
            self._whole.update(_ngrams(text, n))
            self._heads.update(gram[:-1] for gram in _ngrams(text, n))

    def knows(self, text: Sequence[int]) -> bool:
        return _head(text, self._n) in self._heads

    def blocked(self, text: Sequence[int], candidates: Iterable[int]) -> Sequence[int]:
        head = _head(text, self._n)
        return [symbol for symbol in candidates if (*head, symbol) in self._whole]


def _ngrams(text: Sequence[int], n: int) -> Iterator[tuple[int, ...]]:
    return zip(*(islice(text, start, None) for start in range(n)), strict=False)


def _head(text: Sequence[int], n: int) -> tuple[int, ...]:
    """Its last n - 1 symbols, fewer of a shorter text."""
    return tuple(text[max(0, len(text) - n + 1) :])


_corpora: dict[tuple[Any, ...], PassageNGrams | CorpusNGrams] = {}
"""The last one only: a corpus is read once for a decoder and the ledgers that it wrote."""


def corpus_ngrams(
    corpus: Path, sha256: str, symbols: Symbols, n: int, false_positives: float
) -> PassageNGrams | CorpusNGrams:
    """The n-grams of a JSONL file of texts, see `records`; exact where false_positives is 0.

    Raises OSError or ValueError for a file that cannot be read so.
    """
    key = (sha256, symbols.encoding(), n, false_positives)
    if key not in _corpora:
        texts = (symbols.encode_continuation(record["text"]) for record in records(corpus))
        _corpora.clear()
        _corpora[key] = (
            CorpusNGrams(texts, n, false_positives) if false_positives else PassageNGrams(texts, n)
        )
    return _corpora[key]


def corpus_sha256(corpus: Path) -> str:
    """The sha256 of a file's bytes, which are read again where the file was written since."""
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


LARGEST_N = 1000
"""Tokens: about two pages, behind which hardly a text still follows a passage word by word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemFree(Unbounded):
    """p_r without the symbols that would complete an n-gram of the passages; not certified.

    N-grams are of generated symbols, the prompt left out, blocked behind all warpers. Where every
    symbol that is left would complete one, p_r stands as it is: `blocked` texts then hold one.
    Source: Ippolito et al. 2023; paper, appendix "Baseline details".
    """

    passages: list[str] | None = None
    """The texts whose n-grams are blocked: those retrieved for all prompts of a run."""
    n: int = 5
    """Tokens of an n-gram, at least 1; at byte level 4 n bytes (`Level.symbols_per_token`)."""
    corpus: str | None = None
    """JSONL file, {"text": ...} a line, of which every n-gram is blocked. A ledger names it and its
    sha256, and holds no text of it."""
    corpus_sha256: str | None = None
    """The hash that this file must have; computed unless given."""
    false_positives: float = 1e-6
    """Largest probability that a symbol behind the beginning of one of the corpus's n-grams is
    blocked though it completes none: of Bloom filters, in [1e-15, 1). 0 keeps the n-grams
    themselves, as of passages, in 400 bytes each."""
    _blocklists: tuple[PassageNGrams | CorpusNGrams, ...] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    name = "memfree"
    looks_back = True

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        if self.passages is None and self.corpus is None:
            raise ValueError("MemFree needs passages, a corpus or both")
        object.__setattr__(self, "n", whole_number("n", self.n))
        if not 1 <= self.n <= LARGEST_N:
            raise ValueError(f"n must be in [1, {LARGEST_N}], got {self.n}")
        rate = real_number("false_positives", self.false_positives)
        object.__setattr__(self, "false_positives", rate)
        if rate and not 1e-15 <= rate < 1.0:
            raise ValueError(f"false_positives must be 0 or in [1e-15, 1), got {rate}")
        if self.passages is not None:
            object.__setattr__(self, "passages", checked_texts("passages", self.passages))
        self._check_corpus()

    def _check_corpus(self) -> None:
        if self.corpus is None:
            if self.corpus_sha256 is not None:
                raise ValueError("corpus_sha256 is that of a corpus, got none")
            return
        path = Path(self.corpus)
        if not path.is_file():
            raise ValueError(f"corpus must be a file of texts, there is none at {path}")
        sha256 = corpus_sha256(path)
        if self.corpus_sha256 not in (None, sha256):
            raise ValueError(f"{path} is not the corpus that was recorded: its sha256 is {sha256}")
        object.__setattr__(self, "corpus", str(path))
        object.__setattr__(self, "corpus_sha256", sha256)

    def for_symbols(self, symbols: Symbols) -> Self:
        n = self.n * symbols.symbols_per_token
        blocklists: list[PassageNGrams | CorpusNGrams] = []
        if self.passages is not None:
            texts = map(symbols.encode_continuation, self.passages)
            blocklists.append(PassageNGrams(texts, n))
        if self.corpus is not None:
            assert self.corpus_sha256 is not None
            corpus = Path(self.corpus), self.corpus_sha256
            blocklists.append(corpus_ngrams(*corpus, symbols, n, self.false_positives))
        rule = replace(self)
        object.__setattr__(rule, "_blocklists", tuple(blocklists))
        return rule

    def logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        warped = inputs.warped("risky").clone()
        for row, text in enumerate(inputs.past.texts):
            if blocked := self.blocked(text, warped[row]):
                index = torch.tensor(blocked, device=warped.device)
                left = warped[row].index_fill(0, index, -torch.inf)
                warped[row] = torch.where(left.isfinite().any(), left, warped[row])
        return warped

    def blocked(self, text: Sequence[int], logits: Tensor) -> Sequence[int]:
        """Symbols that would complete a blocked n-gram behind a generated text.

        logits: (vocab_size,), -inf for symbols of which it does not matter.
        """
        assert self._blocklists is not None, "a rule is opened for a level first: `for_symbols`"
        knowing = [ngrams for ngrams in self._blocklists if ngrams.knows(text)]
        candidates = (logits > -torch.inf).nonzero()[:, 0].tolist() if knowing else []
        return sorted({symbol for ngrams in knowing for symbol in ngrams.blocked(text, candidates)})
