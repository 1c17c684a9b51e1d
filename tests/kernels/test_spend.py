"""The spend quantum: rounding is exact and sums do not depend on order."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored.kernels.spend import (
    BUDGET_CAP,
    SPEND_QUANTUM,
    ceil_to_quantum,
    floor_to_quantum,
    usable_budget,
)

NATS = st.floats(-(2.0**20), 2.0**20, allow_nan=False)


@given(NATS)
def test_rounding_brackets_the_value_by_less_than_a_quantum(nats):
    value = torch.tensor([nats], dtype=torch.float64)
    low, high = floor_to_quantum(value), ceil_to_quantum(value)
    assert low <= value <= high
    assert high - low in (0.0, SPEND_QUANTUM)
    assert (low / SPEND_QUANTUM).frac() == 0


@given(st.lists(st.floats(0.0, 1e3), min_size=1, max_size=50), st.randoms())
def test_sums_of_spends_do_not_depend_on_their_order(values, random):
    spends = ceil_to_quantum(torch.tensor(values, dtype=torch.float64)).tolist()
    total = math.fsum(spends)
    random.shuffle(spends)
    assert sum(spends) == total


def test_a_budget_is_capped_and_rounded_down():
    budget = torch.tensor([math.inf, 1e-10, -3.0, 0.5], dtype=torch.float64)
    assert usable_budget(budget).tolist() == [BUDGET_CAP, 0.0, -3.0, 0.5]
