"""Allowances against exact arithmetic and the paper's formulas, debts against their definition."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode import reference_decoder
from anchored.decode.rules.budget import Budget, log_likelihood_ratios, prefix_debt
from anchored.kernels.spend import SPEND_QUANTUM

NATS = st.floats(0.0, 40.0)
SCHEDULES = st.sampled_from(["adaptive", "global", "fixed"])
SHARES = st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=30)


@given(k=NATS, debt=NATS | st.just(math.inf), schedule=SCHEDULES, shares=SHARES)
def test_allowances_are_the_papers_and_spends_never_exceed_the_bound(k, debt, schedule, shares):
    """Of a rule that takes these shares of each allowance."""
    horizon, spends = len(shares), []
    budget = Budget(per_step=k, total=k * horizon, horizon=horizon, debt=debt, schedule=schedule)
    for step, share in enumerate(shares):
        spent = math.fsum(spends)
        allowance = budget.allowance(step, spent)
        paper = reference_decoder.allowance(step, k, k * horizon, debt, spent, schedule)
        assert paper - 2 * SPEND_QUANTUM - 1e-12 <= allowance <= paper + 1e-12
        spends.append(math.floor(allowance * share / SPEND_QUANTUM) * SPEND_QUANTUM)
        assert spends[-1] <= allowance
    exact = sum((Fraction(spend) for spend in spends), Fraction(0))
    assert exact <= Fraction(budget.bound)
    assert sum(spends) == math.fsum(reversed(spends)) == exact
    assert budget.is_safe_only == ((schedule != "fixed" and debt >= k * horizon) or k == 0.0)


@given(
    ratios=st.lists(st.floats(-20, 20), max_size=30),
    window=st.integers(1, 8),
    mode=st.sampled_from(["top", "average", "none"]),
)
def test_a_debt_is_its_definition(ratios, window, mode):
    largest = sorted((max(0.0, ratio) for ratio in ratios), reverse=True)[:window]
    expected = {
        "top": sum(largest) / max(1, len(largest)),
        "average": max(0.0, sum(ratios) / max(1, len(ratios))),
        "none": 0.0,
    }
    debt = prefix_debt(torch.tensor(ratios, dtype=torch.float64), mode=mode, window=window)
    assert debt == pytest.approx(expected[mode], abs=1e-12)


@pytest.mark.parametrize(("mode", "nats"), [("top", math.inf), ("average", math.inf), ("none", 0)])
def test_a_token_impossible_for_the_safe_model_owes_everything_and_nan_is_no_debt(mode, nats):
    """Nothing makes up for it, neither a token that the risky model never writes."""
    risky, safe = torch.tensor([-1.0, -math.inf, -math.inf]), torch.tensor([-2.0, -math.inf, -1.0])
    ratios = log_likelihood_ratios(risky, safe)
    assert ratios.tolist() == [1.0, math.inf, -math.inf]
    assert prefix_debt(ratios, mode=mode) == nats
    with pytest.raises(ValueError, match="hold NaN"):
        prefix_debt(torch.tensor([3.0, math.nan, 1.0]), mode=mode)
