"""Words as the metrics count them, and the spans of them that two texts share."""

import itertools
import re
import string
from collections.abc import Iterable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokenizer = Literal["split", "strip_punctuation"]

_PUNCTUATION = str.maketrans("", "", string.punctuation)


class Word(NamedTuple):
    """A lower-cased word and the characters [start, end) of the text it was read from."""

    text: str
    start: int
    end: int


def words(text: str, *, tokenizer: Tokenizer = "split", max_words: int | None = None) -> list[Word]:
    """Lower-cased words between white space, the first `max_words` of them (None: all).

    tokenizer: "split" keeps punctuation attached, as `text.lower().split()` does;
    "strip_punctuation" deletes the characters of `string.punctuation` first.
    Returns: words in order; `start` and `end` count characters of `text` as given.
    """
    found: Iterable[Word] = (
        Word(match.group().lower(), match.start(), match.end())
        for match in re.finditer(r"\S+", text)
    )
    if tokenizer == "strip_punctuation":
        bare = (word._replace(text=word.text.translate(_PUNCTUATION)) for word in found)
        found = (word for word in bare if word.text)
    return list(itertools.islice(found, max_words))


def has_non_ascii_words(text: str) -> bool:
    """True if a letter or digit lies outside ASCII; typographic quotes and dashes do not count."""
    return not text.isascii() and any(c.isalnum() and not c.isascii() for c in text)


Symbols = NDArray[np.int64]


class Span(NamedTuple):
    """`length` symbols that read the same from both starts; positions count symbols from 0."""

    hypothesis_start: int
    reference_start: int
    length: int


def longest_common_span(hypothesis: Symbols, reference: Symbols) -> Span:
    """The longest contiguous run of equal symbols.

    hypothesis: (N,) int64; reference: (M,) int64. Equal numbers mean equal symbols.
    Returns: the longest span; of several, the one with the smallest hypothesis start, then the
    smallest reference start. Length 0 (at 0, 0) if no symbol is shared.
    Cost: N vector operations of M elements, about 5 ms for two texts of 1,000 characters.
    """
    best = Span(0, 0, 0)
    # run_lengths[j + 1]: how many symbols match when both sides are read backwards from (i, j).
    run_lengths = np.zeros(len(reference) + 1, dtype=np.int64)
    for end in range(len(hypothesis)) if len(reference) else ():
        run_lengths[1:] = (run_lengths[:-1] + 1) * (reference == hypothesis[end])
        reference_end = int(run_lengths.argmax())
        length = int(run_lengths[reference_end])
        if length > best.length:
            best = Span(end + 1 - length, reference_end - length, length)
    return best


def disjoint_common_spans(
    hypothesis: Symbols, reference: Symbols, *, min_length: int
) -> tuple[Span, ...]:
    """Common spans chosen longest first, none overlapping another in either sequence.

    hypothesis: (N,) int64; reference: (M,) int64, both >= 0; min_length: symbols, at least 1.
    Returns: spans of at least `min_length` symbols in order of hypothesis start. Each choice is
    `longest_common_span` of what is left, so a passage that was chosen cannot be counted twice.
    Raises: ValueError if min_length is below 1.
    Source: He et al., "Anchored Decoding", appendix "Copyright infringement", word-level ACS.
    """
    if min_length < 1:
        raise ValueError(f"min_length must be at least 1, got {min_length}")
    hypothesis, reference = hypothesis.copy(), reference.copy()
    spans = []
    while (span := longest_common_span(hypothesis, reference)).length >= min_length:
        spans.append(span)
        # Two different negative numbers: a used symbol matches nothing, not even a used one.
        hypothesis[span.hypothesis_start : span.hypothesis_start + span.length] = -1
        reference[span.reference_start : span.reference_start + span.length] = -2
    return tuple(sorted(spans))
