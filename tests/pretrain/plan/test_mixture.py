"""The order of training: sources in proportion at every prefix, windows once each."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.pretrain.plan.order import KeyedPermutation, Mixture

WEIGHTS = st.lists(
    st.fractions(Fraction(1, 1000), 50, max_denominator=1000), min_size=1, max_size=31
)


@given(weights=WEIGHTS, start=st.integers(0, 400) | st.integers(0, 10**9))
@settings(max_examples=60)
def test_counts_are_of_the_sources_located_each_in_its_own_order_without_gaps(weights, start):
    mixture = Mixture(weights)
    assert mixture.counts(0) == [0] * len(weights)
    expected = mixture.counts(start)
    for position in range(start, start + 60):
        source, occurrence = mixture.locate(position)
        assert occurrence == expected[source]
        assert mixture.position(source, occurrence) == position
        expected[source] += 1
    assert mixture.counts(start + 60) == expected


@given(weights=WEIGHTS, length=st.integers(0, 1000) | st.integers(0, 10**12))
@settings(max_examples=100)
def test_every_prefix_is_in_proportion(weights, length):
    for weight, count in zip(weights, Mixture(weights).counts(length), strict=True):
        assert abs(count - length * weight / sum(weights)) < Fraction(168, 100)


@given(size=st.integers(1, 1000) | st.integers(1, 2**40), key=st.text(max_size=20), data=st.data())
@settings(max_examples=100)
def test_every_element_is_hit_exactly_once(size, key, data):
    permutation = KeyedPermutation(size, key)
    first = data.draw(st.integers(0, max(0, size - 1000)))
    indices = range(first, min(size, first + 1000))  # all of a small one
    elements = [permutation[index] for index in indices]
    assert min(elements) >= 0 and max(elements) < size
    assert [permutation.index(element) for element in elements] == list(indices)


def test_the_order_never_changes():
    # Golden: print([KeyedPermutation(11, "0/a/0")[i] for i in range(11)]). Runs that were
    # started must read the same windows when they are resumed with a later version.
    expected = [8, 10, 9, 7, 5, 0, 1, 3, 6, 4, 2]
    assert [KeyedPermutation(11, "0/a/0")[index] for index in range(11)] == expected


def test_positions_are_spread_over_the_keys():
    # Where 0 lands over 4,000 keys, in 16 cells: chi-square with 15 degrees of freedom stays
    # below 44.3 with probability 0.9999.
    counts = [0] * 16
    for key in range(4000):
        counts[KeyedPermutation(16, str(key))[0]] += 1
    assert sum((count - 250) ** 2 / 250 for count in counts) < 44.3
