"""The interleaving of sources: exact counts, bounded deviation, one source a position."""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.pretrain.mixture import Mixture

WEIGHTS = st.lists(
    st.fractions(Fraction(1, 1000), 50, max_denominator=1000), min_size=1, max_size=31
)


@given(weights=WEIGHTS, length=st.integers(1, 400))
@settings(max_examples=60, deadline=None)
def test_counts_are_the_counts_of_the_sources_located(weights, length):
    mixture = Mixture(weights)
    located = [mixture.locate(position) for position in range(length)]
    tally = Counter(source for source, _ in located)
    assert mixture.counts(length) == [tally[source] for source in range(len(weights))]


@given(weights=WEIGHTS, start=st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_each_source_is_read_in_its_own_order_without_gaps(weights, start):
    mixture = Mixture(weights)
    expected = mixture.counts(start)
    for position in range(start, start + 60):
        source, occurrence = mixture.locate(position)
        assert occurrence == expected[source]
        expected[source] += 1


@given(weights=WEIGHTS, length=st.integers(0, 10**12))
@settings(max_examples=100, deadline=None)
def test_every_prefix_is_in_proportion(weights, length):
    mixture = Mixture(weights)
    total = sum(weights)
    for weight, count, bound in zip(
        weights, mixture.counts(length), mixture.deviation_bounds, strict=True
    ):
        deviation = abs(count - length * Fraction(weight, total))
        assert deviation <= Fraction(bound) + Fraction(1, 10**9)
        assert bound < 1.68


@given(weights=WEIGHTS, lengths=st.lists(st.integers(0, 10**12), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_counts_of_many_prefixes_are_the_counts_of_each(weights, lengths):
    mixture = Mixture(weights)
    expected = [mixture.counts(length) for length in lengths]
    assert mixture.counts_at(lengths).tolist() == expected


def test_fibonacci_weights_stay_below_the_stated_constant():
    fibonacci = [1, 1]
    while len(fibonacci) < 31:
        fibonacci.append(fibonacci[-1] + fibonacci[-2])
    assert 1.0 < max(Mixture([Fraction(f) for f in fibonacci]).deviation_bounds) < 1.68


def test_two_equal_sources_alternate():
    mixture = Mixture([Fraction(1, 2), Fraction(1, 2)])
    assert [mixture.locate(position)[0] for position in range(6)] in ([0, 1] * 3, [1, 0] * 3)


def test_only_ratios_matter():
    weights = [Fraction(w) for w in (3, 5, 9)]
    halves = [weight / 2 for weight in weights]
    one, other = Mixture(weights), Mixture(halves)
    assert [one.locate(p) for p in range(200)] == [other.locate(p) for p in range(200)]


@pytest.mark.parametrize("weights", [[], [Fraction(0)], [Fraction(1), Fraction(-1)]])
def test_weights_that_are_not_positive_are_refused(weights):
    with pytest.raises(ValueError, match="positive weights"):
        Mixture(weights)
