"""MemFree: the risky model, never completing an n-gram of a blocklist."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...durable_files import file_sha256
from ...inputs import records
from .rule import OpenRule, StepInputs, Symbols
from .unbounded import Unbounded


class NGrams:
    """Every n-gram of some texts, none of which a text may complete: 400 MB a million of them."""

    def __init__(self, texts: Iterable[Sequence[int]], n: int) -> None:
        lasts_of: dict[tuple[int, ...], set[int]] = {}
        for text in texts:
            for *head, last in _ngrams(text, n):
                lasts_of.setdefault(tuple(head), set()).add(last)
        self._n = n
        self._lasts = {head: tuple(lasts) for head, lasts in lasts_of.items()}  # a set takes more

    def completing(self, text: Sequence[int]) -> Sequence[int]:
        """Symbols that complete an n-gram after this text."""
        return self._lasts.get(tuple(text[max(0, len(text) - self._n + 1) :]), ())


def _ngrams(text: Sequence[int], n: int) -> Iterator[tuple[int, ...]]:
    return zip(*(islice(text, start, None) for start in range(n)), strict=False)


_corpora: dict[tuple[Any, ...], NGrams] = {}
"""The last one only: a corpus is read once for a decoder and the ledgers that it wrote."""


def corpus_ngrams(corpus: Path, sha256: str, symbols: Symbols, n: int) -> NGrams:
    """The n-grams of a JSONL file of texts, see `records`.

    Raises OSError or ValueError for a file that cannot be read so.
    """
    key = (sha256, symbols.encoding(), n)
    if key not in _corpora:
        texts = (symbols.encode_continuation(record["text"]) for record in records(corpus))
        _corpora.clear()
        _corpora[key] = NGrams(texts, n)
    return _corpora[key]


def corpus_sha256(corpus: Path) -> str:
    """The sha256 of a file's bytes, which are read again where the file was written since."""
    stat = corpus.stat()
    return _sha256(corpus, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=8)
def _sha256(path: Path, modified: int, size: int) -> str:
    return file_sha256(path)


LARGEST_N = 1000
"""Tokens: about two pages, after which hardly a text still follows a passage word by word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemFree(Unbounded):
    """p_r without the symbols that would complete an n-gram of the passages; not certified.

    N-grams are of generated symbols, the prompt left out, blocked after all warpers. Where every
    symbol that is left would complete one, p_r is taken as it is, and the text then holds one.
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

    name = "memfree"
    looks_back = True

    def __post_init__(self) -> None:
        if isinstance(self.corpus, Path):
            object.__setattr__(self, "corpus", str(self.corpus))
        Unbounded.__post_init__(self)
        if self.passages is None and self.corpus is None:
            raise ValueError("MemFree needs passages, a corpus or both")
        if not 1 <= self.n <= LARGEST_N:
            raise ValueError(f"n must be in [1, {LARGEST_N}], got {self.n}")
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

    def open(self, level: Symbols) -> OpenRule:
        n = self.n * level.symbols_per_token
        blocklists = []
        if self.passages is not None:
            texts = map(level.encode_continuation, self.passages)
            blocklists.append(NGrams(texts, n))
        if self.corpus is not None:
            assert self.corpus_sha256 is not None
            blocklists.append(corpus_ngrams(Path(self.corpus), self.corpus_sha256, level, n))
        return self.drawing(partial(unblocked, blocklists))


def unblocked(blocklists: Sequence[NGrams], inputs: StepInputs) -> Tensor:
    """(batch, vocab_size) warped logits of p_r, -inf where a symbol completes an n-gram."""
    assert inputs.past is not None
    warped = inputs.warped("risky").clone()
    for row, text in enumerate(inputs.past.texts):
        if blocked := {symbol for ngrams in blocklists for symbol in ngrams.completing(text)}:
            index = torch.tensor(sorted(blocked), device=warped.device)
            left = warped[row].index_fill(0, index, -torch.inf)
            warped[row] = torch.where(left.isfinite().any(), left, warped[row])
    return warped
