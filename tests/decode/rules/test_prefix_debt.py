"""Prefix debt against its definition."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode.rules.budget import log_likelihood_ratios, prefix_debt

RATIOS = st.lists(st.floats(-20, 20), max_size=30)


@given(RATIOS, st.integers(1, 8))
def test_debt_is_the_mean_of_the_largest_positive_parts(ratios, window):
    largest = sorted((max(0.0, ratio) for ratio in ratios), reverse=True)[:window]
    expected = sum(largest) / max(1, len(largest))
    debt = prefix_debt(torch.tensor(ratios, dtype=torch.float64), window=window)
    assert debt == pytest.approx(expected, abs=1e-12)


@given(RATIOS)
def test_average_debt_is_the_positive_part_of_the_mean(ratios):
    expected = max(0.0, sum(ratios) / max(1, len(ratios)))
    debt = prefix_debt(torch.tensor(ratios, dtype=torch.float64), mode="average")
    assert debt == pytest.approx(expected, abs=1e-12)


def test_no_positions_and_no_debt_mode_owe_nothing():
    assert prefix_debt(torch.empty(0, dtype=torch.float64)) == 0.0
    assert prefix_debt(torch.tensor([5.0]), mode="none") == 0.0


def test_a_token_impossible_for_the_safe_model_makes_the_debt_infinite():
    risky = torch.tensor([-1.0, -math.inf])
    safe = torch.tensor([-2.0, -math.inf])
    assert prefix_debt(log_likelihood_ratios(risky, safe)) == math.inf


@pytest.mark.parametrize("mode", ["top", "average"])
def test_beside_an_impossible_token_none_of_the_risky_model_makes_up_for_it(mode):
    ratios = torch.tensor([math.inf, -math.inf, 1.0])
    assert prefix_debt(ratios, mode=mode) == math.inf


@pytest.mark.parametrize("mode", ["top", "average", "none"])
def test_no_debt_follows_from_nan(mode):
    with pytest.raises(ValueError, match="hold NaN"):
        prefix_debt(torch.tensor([3.0, math.nan, 1.0]), mode=mode)
