"""The spans of symbols, as characters or words, that two texts share."""

from collections.abc import Iterable
from typing import NamedTuple

Symbols = str
"""A text of characters, or of words with one character for each different word: equal characters
are equal symbols."""

_USED = "\U0010fffe", "\U0010ffff"  # two characters that Unicode assigns to no text


class Span(NamedTuple):
    """`length` symbols that read the same from both starts; positions count symbols from 0."""

    hypothesis_start: int
    reference_start: int
    length: int


def word_symbols(*texts: Iterable[str]) -> list[Symbols]:
    """Each text's words as one character a word, numbered as they appear first."""
    numbers: dict[str, int] = {}
    return ["".join(chr(numbers.setdefault(word, len(numbers))) for word in text) for text in texts]


def longest_common_span(hypothesis: Symbols, reference: Symbols, *, min_length: int = 1) -> Span:
    """The longest contiguous run of equal symbols, if it has at least `min_length`.

    Returns: the longest span; of several, the one with the smallest hypothesis start, then the
    smallest reference start. Length 0 (at 0, 0) if none is long enough.
    Cost: runs of about ten lengths are looked up, each in N + M steps of a dictionary; 1 ms for two
    texts of 1,000 characters.
    """
    # A shared run of n symbols holds one of every smaller length: lengths double, then halve.
    best, too_long, length = Span(0, 0, 0), min(len(hypothesis), len(reference)) + 1, min_length
    while length < too_long:
        if (start := _first_shared(hypothesis, reference, length)) is None:
            too_long = length
        else:
            best = Span(start, reference.find(hypothesis[start : start + length]), length)
        if not best.length:
            break
        length = max(min(2 * best.length, (best.length + too_long) // 2), best.length + 1)
    return best


def _first_shared(hypothesis: Symbols, reference: Symbols, length: int) -> int | None:
    """The first start of a run of this length that the reference has too; None without one."""
    # Hashes, not the runs: of two long texts those would not fit in memory.
    known = {hash(reference[i : i + length]) for i in range(len(reference) - length + 1)}
    for start in range(len(hypothesis) - length + 1):
        run = hypothesis[start : start + length]
        if hash(run) in known and run in reference:
            return start
    return None


def disjoint_common_spans(
    hypothesis: Symbols, reference: Symbols, *, min_length: int
) -> tuple[Span, ...]:
    """Common spans chosen longest first, none overlapping another in either sequence.

    hypothesis, reference: of `word_symbols`, or any text; min_length: symbols, at least 1.
    Returns: spans of at least `min_length` symbols in order of hypothesis start. Each choice is
    `longest_common_span` of what is left, so a passage that was chosen cannot be counted twice.
    Source: He et al., "Anchored Decoding", appendix "Copyright infringement", word-level ACS.
    """
    spans = []
    while (span := longest_common_span(hypothesis, reference, min_length=min_length)).length:
        spans.append(span)
        # Two different characters: a used symbol matches nothing, not even a used one.
        hypothesis = _without(hypothesis, span.hypothesis_start, span.length, _USED[0])
        reference = _without(reference, span.reference_start, span.length, _USED[1])
    return tuple(sorted(spans))


def _without(text: Symbols, start: int, length: int, used: str) -> Symbols:
    return text[:start] + used * length + text[start + length :]
