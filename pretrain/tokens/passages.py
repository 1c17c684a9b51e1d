"""Passages that texts share: 13 words, or 64 letters, in a row, recognized by their hashes."""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NUM_WORDS = 13
NUM_LETTERS = 64  # 13 words of English have about 61
LETTER_STRIDE = 8
"""A stretch begins at every so many letters of the texts looked for; documents are tried at each
letter. So NUM_LETTERS + LETTER_STRIDE - 1 shared letters always match, whatever the spaces."""
# 13 words of one or two letters are columns of a table or an alphabet, which have no author.
_LEAST_LETTERS = 30
# Texts are hashed in blocks, so that a document of 20 MB takes no more memory than one of 1 MB;
# what begins in a block may end so many characters after it.
BLOCK, OVERLAP = 1 << 18, 1 << 12
_FILTER_BITS = 16  # of the filter in front of the hashes, a hash: one look-up in 16 goes on
_ACCENTS = re.compile("[\u0300-\u036f]+")  # the combining marks of Latin, Greek and Cyrillic
_ARRAYS = ("hashes", "texts", "filter")
_NUM_NAMED = 5
_EXCERPT_CHARS = 120

Hashes = NDArray[np.uint64]
Indices = NDArray[np.int64]
_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64


def normalized(text: str) -> str:
    """Unicode NFKC without case and accents; all but letters is left out when it is hashed."""
    if text.isascii():
        return text.lower()
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text)).casefold()
    return unicodedata.normalize("NFKC", _ACCENTS.sub("", unicodedata.normalize("NFKD", plain)))


@dataclass(frozen=True, slots=True)
class SharedText:
    """The share of a document in the texts looked for, in characters of its normalized form."""

    num_chars: int
    """Matched characters, spaces within a match included."""
    share: float
    """Share of the document."""
    longest: int
    """Characters of the longest stretch."""
    texts: tuple[str, ...]
    """Names of the texts with most matches, at most 5."""
    excerpt: str
    """Beginning of the longest stretch, normalized."""


class Passages:
    """The hashes of all passages of some texts, 14 to 16 bytes each.

    8 for the hash, 4 for the number of its text, 2 to 4 for the filter before them. Any two
    passages have the same hash by a chance of about 2^-57 or less, so a match is one.
    """

    def __init__(
        self, hashes: Hashes, texts: NDArray[np.uint32], filter: NDArray[np.uint8]
    ) -> None:
        """hashes: ascending; texts: the number of one text that has each; filter: bits."""
        self.hashes, self.texts, self.filter = hashes, texts, filter
        self._shift = np.uint64(64 - (8 * len(filter)).bit_length() + 1)

    @classmethod
    def of(cls, texts: Iterable[tuple[int, str]]) -> "tuple[Passages, set[int]]":
        """The passages of numbered texts, and the numbers of those that have any.

        A number may come several times.
        """
        # 1. All hashes, each with the number of its text.
        hashes, numbers, long_ones = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint32)], set()
        for number, text in texts:
            for _, block in _blocks(normalized(text)):
                for spans, starts, _ in block.spans(LETTER_STRIDE):
                    hashes.append(spans)
                    numbers.append(np.full(len(starts), number, np.uint32))
                    if len(spans):
                        long_ones.add(number)
        # 2. Sorted, each once, for the binary search; and a filter of one bit in about 16, which
        # answers most questions with one access to memory in place of some twenty.
        unique, first = np.unique(np.concatenate(hashes), return_index=True)
        num_bits = 1 << max(3, (_FILTER_BITS * len(unique) - 1).bit_length())
        passages = cls(unique, np.concatenate(numbers)[first], np.zeros(num_bits // 8, np.uint8))
        slot = unique >> passages._shift
        np.bitwise_or.at(passages.filter, slot >> np.uint64(3), _bit(slot))
        return passages, long_ones

    @property
    def num_bytes(self) -> int:
        return sum(int(getattr(self, name).nbytes) for name in _ARRAYS)

    def save(self, folder: Path) -> None:
        """Write the arrays as .npy files."""
        for name in _ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))

    @classmethod
    def load(cls, folder: Path) -> "Passages":
        """The arrays that `save` wrote, mapped: processes of a machine share their memory."""
        return cls(*(np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS))

    def find(self, hashes: Hashes) -> tuple[Indices, Indices]:
        """The indices of the hashes that are there, and of their equals in `self.hashes`."""
        slot = hashes >> self._shift
        likely = np.flatnonzero(self.filter[slot >> np.uint64(3)] & _bit(slot))
        entries = np.searchsorted(self.hashes, hashes[likely])
        entries = np.minimum(entries, len(self.hashes) - 1)
        is_there = self.hashes[entries] == hashes[likely]
        return likely[is_there], entries[is_there]

    def shared_with(self, text: str, names: list[str]) -> SharedText | None:
        """Compare a text with those looked for, named by number; None if it shares nothing."""
        # 1. Every span of the text whose hash is there: from where to where, and of which text.
        plain = normalized(text)
        matches = [np.zeros((3, 0), np.int64)]
        for offset, block in _blocks(plain):
            for hashes, starts, ends in block.spans(1):
                spans, entries = self.find(hashes)
                if len(spans):
                    first = block.positions[starts[spans]] + offset
                    after = block.positions[ends[spans] - 1] + offset + 1
                    matches.append(np.stack([first, after, self.texts[entries].astype(np.int64)]))
        starts, ends, texts = np.concatenate(matches, axis=1)
        if not len(starts):
            return None
        # 2. Spans overlap: characters are counted once, in the stretches that they cover together.
        stretches = _union(starts, ends)
        lengths = stretches[1] - stretches[0]
        begin = int(stretches[0][lengths.argmax()])
        longest = int(lengths.max())
        # 3. The texts with most spans; of equal ones the first.
        numbers, counts = np.unique(texts, return_counts=True)
        most = numbers[np.argsort(-counts, kind="stable")][:_NUM_NAMED]
        return SharedText(
            num_chars=int(lengths.sum()),
            share=int(lengths.sum()) / len(plain),
            longest=longest,
            texts=tuple(names[number] for number in most),
            excerpt=" ".join(plain[begin : begin + min(longest, _EXCERPT_CHARS)].split()),
        )


class _Block:
    """Letters of a stretch of text, hashed so that any span of them has its hash at once.

    A span's hash is the sum of value(letter) * base^i, i from 0 at its first letter, modulo 2^64,
    scrambled: prefix sums divided by a power of the base. Source: Karp and Rabin 1987.
    """

    def __init__(self, text: str) -> None:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
        values = _letter_values()[codes]
        self.positions: Indices = np.flatnonzero(values)
        """Position of each letter, in characters."""
        count = len(self.positions)
        self._sums = np.zeros(count + 1, np.uint64)
        np.cumsum(values[self.positions] * _powers(_BASE)[:count], out=self._sums[1:])

    def spans(self, stride: int) -> Iterator[tuple[Hashes, Indices, Indices]]:
        """(hashes, first letters, letters after the last) of all words' and letters' spans."""
        count = len(self.positions)
        words = np.append(np.flatnonzero(np.diff(self.positions, prepend=-2) > 1), count)
        starts, ends = words[:-NUM_WORDS], words[NUM_WORDS:]
        is_long = ends - starts >= _LEAST_LETTERS
        yield self._hashed(starts[is_long], ends[is_long])
        starts = np.arange(0, count - NUM_LETTERS + 1, stride)
        yield self._hashed(starts, starts + NUM_LETTERS)

    def _hashed(self, starts: Indices, ends: Indices) -> tuple[Hashes, Indices, Indices]:
        sums = self._sums[ends] - self._sums[starts]
        hashes = sums * _powers(pow(_BASE, -1, 1 << 64))[starts]
        return _scrambled(hashes), starts, ends


def _blocks(plain: str) -> Iterator[tuple[int, _Block]]:
    for offset in range(0, len(plain), BLOCK):
        yield offset, _Block(plain[offset : offset + BLOCK + OVERLAP])


def _union(starts: Indices, ends: Indices) -> tuple[Indices, Indices]:
    """The stretches that some overlapping ones cover, in order."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    is_new = np.append(True, starts[1:] > ends[:-1])
    return starts[is_new], ends[np.append(is_new[1:], True)]


def _bit(slot: Hashes) -> NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (slot & np.uint64(7)).astype(np.uint8))


@lru_cache(maxsize=2)
def _powers(base: int) -> Hashes:
    factors = np.full(BLOCK + OVERLAP, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)


@lru_cache(maxsize=1)
def _letter_values() -> Hashes:
    """A number for each code point that is a letter, 0 for every other.

    Digits are none, or the numbers of lines and pages would hide what is between them.
    """
    is_letter = np.array([chr(code).isalpha() for code in range(0x110000)])
    numbers = _scrambled(np.arange(1, 0x110001, dtype=np.uint64))
    return np.where(is_letter, numbers, np.uint64(0))


def _scrambled(values: Hashes) -> Hashes:
    # Finalizer of splitmix64 (Steele et al. 2014).
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
