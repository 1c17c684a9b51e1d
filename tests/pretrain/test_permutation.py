"""The keyed permutation: bijective for every size, fixed for ever by its key."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchored.pretrain.permutation import KeyedPermutation


@given(size=st.integers(1, 3000), key=st.text(max_size=20))
@settings(max_examples=60, deadline=None)
def test_every_element_is_hit_exactly_once(size, key):
    permutation = KeyedPermutation(size, key)
    assert sorted(permutation[index] for index in range(size)) == list(range(size))


@given(size=st.integers(1, 2**40), data=st.data())
@settings(max_examples=60, deadline=None)
def test_images_of_huge_ranges_stay_inside(size, data):
    index = data.draw(st.integers(0, size - 1))
    assert 0 <= KeyedPermutation(size, "k")[index] < size


def test_the_order_never_changes():
    # Golden: print([KeyedPermutation(11, "0/a/0")[i] for i in range(11)]). Runs that were
    # started must read the same windows when they are resumed with a later version.
    expected = [8, 10, 9, 7, 5, 0, 1, 3, 6, 4, 2]
    assert [KeyedPermutation(11, "0/a/0")[index] for index in range(11)] == expected


def test_other_keys_give_other_orders():
    orders = {
        tuple(KeyedPermutation(50, f"0/a/{epoch}")[index] for index in range(50))
        for epoch in range(40)
    }
    assert len(orders) == 40


def test_positions_are_spread_over_the_keys():
    # Where 0 lands over 4,000 keys, in 16 cells: chi-square with 15 degrees of freedom stays
    # below 44.3 with probability 0.9999.
    counts = [0] * 16
    for key in range(4000):
        counts[KeyedPermutation(16, str(key))[0]] += 1
    assert sum((count - 250) ** 2 / 250 for count in counts) < 44.3


def test_an_index_outside_is_refused():
    with pytest.raises(IndexError, match=r"index must be in \[0, 5\), got 5"):
        KeyedPermutation(5, "k")[5]
    with pytest.raises(ValueError, match="at least one element"):
        KeyedPermutation(0, "k")
