"""The spans that two texts share."""

from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.copying.metrics import Span, disjoint_common_spans, longest_common_span

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
