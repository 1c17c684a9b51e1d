"""Allowances against exact rational arithmetic."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode.rules.budget import Budget
from anchored.kernels.spend import SPEND_QUANTUM

NATS = st.floats(0.0, 40.0)


def spends_of(budget: Budget, shares: list[float]) -> list[float]:
    """What a rule would spend that takes these shares of each allowance."""
    spends: list[float] = []
    for step, share in enumerate(shares):
        allowance = budget.allowance(step, math.fsum(spends))
        spends.append(math.floor(allowance * share / SPEND_QUANTUM) * SPEND_QUANTUM)
        assert spends[-1] <= allowance
    return spends


@given(
    k=NATS,
    debt=NATS,
    schedule=st.sampled_from(["adaptive", "global", "fixed"]),
    shares=st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=30),
)
def test_sum_of_spends_never_exceeds_the_bound_exactly(k, debt, schedule, shares):
    budget = Budget(
        per_step=k, total=k * len(shares), horizon=len(shares), debt=debt, schedule=schedule
    )
    spends = spends_of(budget, shares)
    exact = sum((Fraction(spend) for spend in spends), Fraction(0))
    assert exact <= Fraction(budget.bound)
    assert sum(spends) == math.fsum(reversed(spends)) == exact


@given(k=NATS, debt=NATS, step=st.integers(0, 9), spent=st.floats(0, 10))
def test_adaptive_allowance_is_the_papers_up_to_the_quantum(k, debt, step, spent):
    budget = Budget(per_step=k, total=10 * k, horizon=10, debt=debt)
    paper = max(0.0, (step + 1) * k - spent - debt)
    assert paper - 2 * SPEND_QUANTUM - 1e-12 <= budget.allowance(step, spent) <= paper + 1e-12


def test_debt_above_the_total_leaves_nothing():
    budget = Budget(per_step=1.0, total=5.0, horizon=5, debt=7.0)
    assert budget.is_safe_only and budget.bound == 0.0
    assert [budget.allowance(step, 0.0) for step in range(5)] == [0.0] * 5


def test_infinite_debt_leaves_nothing():
    budget = Budget(per_step=1.0, total=5.0, horizon=5, debt=math.inf)
    assert budget.allowance(4, 0.0) == 0.0 and budget.bound == 0.0


def test_first_steps_wait_until_the_debt_is_paid():
    budget = Budget(per_step=1.0, total=10.0, horizon=10, debt=2.5)
    allowances = [budget.allowance(step, 0.0) for step in range(4)]
    assert allowances == pytest.approx([0.0, 0.0, 0.5, 1.5], abs=1e-9)


def test_fixed_allowance_ignores_debt_and_spends():
    budget = Budget(per_step=0.5, total=5.0, horizon=10, debt=3.0, schedule="fixed")
    assert budget.allowance(0, 0.0) == budget.allowance(9, 4.5) == 0.5
    assert budget.bound == 5.0
