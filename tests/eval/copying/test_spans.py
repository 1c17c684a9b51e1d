"""Words of a text, and the spans that two texts share."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import _score_lcs

from anchored.eval.copying.spans import (
    Span,
    disjoint_common_spans,
    has_non_ascii_words,
    longest_common_span,
    longest_common_subsequence,
    word_symbols,
    words,
)

SHORT = st.lists(st.integers(0, 3), max_size=14)


def symbols(values):
    return "".join(map(chr, values))


def brute_force_span(first, second):
    spans = [
        Span(i, j, length)
        for i in range(len(first))
        for j in range(len(second))
        for length in range(1, min(len(first) - i, len(second) - j) + 1)
        if first[i : i + length] == second[j : j + length]
    ]
    return min(spans, key=lambda span: (-span.length, *span[:2]), default=Span(0, 0, 0))


@given(SHORT, SHORT)
def test_longest_span_and_its_place_equal_brute_force(first, second):
    longest = longest_common_span(symbols(first), symbols(second))
    assert longest == brute_force_span(first, second)
    assert longest.length == longest_common_span(symbols(second), symbols(first)).length


@given(SHORT, SHORT, st.integers(1, 4))
def test_chosen_spans_are_equal_long_enough_disjoint_and_all_there_are(first, second, min_length):
    spans = disjoint_common_spans(symbols(first), symbols(second), min_length=min_length)
    longest = longest_common_span(symbols(first), symbols(second))
    assert (longest in spans) == (longest.length >= min_length)
    left_first, left_second = list(first), list(second)
    for i, j, length in spans:
        assert length >= min_length and first[i : i + length] == second[j : j + length]
        for left, start, used in ((left_first, i, 8), (left_second, j, 9)):
            assert max(left[start : start + length]) < 8
            left[start : start + length] = [used] * length
    rest = longest_common_span(symbols(left_first), symbols(left_second))
    assert rest.length < min_length


@given(SHORT, SHORT, st.integers(1, 4))
def test_a_span_below_the_minimum_is_none(first, second, min_length):
    longest = brute_force_span(first, second)
    found = longest_common_span(symbols(first), symbols(second), min_length=min_length)
    assert found == (longest if longest.length >= min_length else Span(0, 0, 0))


def test_a_long_copy_is_found_at_its_place():
    passage = "".join(chr(300 + i) for i in range(1000))
    hypothesis, reference = "a" * 700 + passage, passage + "b" * 700
    assert longest_common_span(hypothesis, reference) == Span(700, 0, 1000)
    assert longest_common_span(hypothesis, reference[1:]) == Span(701, 0, 999)


@given(SHORT, SHORT)
def test_the_subsequence_is_as_long_as_rouge_s_own(first, second):
    # A quotient by the length of either side gives the length back: they are below 14.
    expected = _score_lcs(first, second).precision * len(second)
    assert longest_common_subsequence(symbols(first), symbols(second)) == round(expected)


def test_words_are_numbered_alike_in_all_texts():
    assert word_symbols(["the", "owl", "the"], ["owl", "sat"]) == ["\0\1\0", "\1\2"]


def test_a_short_early_span_does_not_shadow_a_longer_overlapping_one():
    # 1 2 3 comes first in both, but 3 4 5 6 7 overlaps it and is longer.
    hypothesis, reference = symbols([1, 2, 3, 4, 5, 6, 7]), symbols([1, 2, 3, 9, 3, 4, 5, 6, 7])
    chosen = disjoint_common_spans(hypothesis, reference, min_length=2)
    assert chosen == (Span(0, 0, 2), Span(2, 4, 5))


def test_a_reference_span_written_twice_counts_once():
    hypothesis, reference = symbols([1, 2, 3, 8, 1, 2, 3]), symbols([1, 2, 3])
    assert disjoint_common_spans(hypothesis, reference, min_length=2) == (Span(0, 0, 3),)


def test_min_length_zero_is_refused():
    with pytest.raises(ValueError, match="min_length must be at least 1, got 0"):
        disjoint_common_spans(symbols([1]), symbols([1]), min_length=0)


@given(st.text())
def test_words_are_the_lower_cased_split_and_point_back_at_the_text(text):
    found = words(text)
    assert [word.text for word in found] == text.lower().split()
    assert all(text[word.start : word.end].lower() == word.text for word in found)


def test_typographic_quotes_are_no_foreign_letters():
    assert not has_non_ascii_words("\u201cdon\u2019t\u201d \u2014 she said")
    assert has_non_ascii_words("caf\u00e9")
