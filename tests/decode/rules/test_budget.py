"""Allowances against exact arithmetic and the paper's formulas, debts against their definition."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode import reference_decoder
from anchored.decode.rules.anchored import Anchored, NoOpt
from anchored.decode.rules.budget import (
    Budget,
    log_likelihood_ratios,
    opened_accounts,
    prefix_debt,
)
from anchored.decode.rules.registry import make_rule
from anchored.kernels.spend import BANK_MARGIN, SPEND_QUANTUM, allowance, charged

NATS = st.floats(0.0, 40.0)
SCHEDULES = st.sampled_from(["adaptive", "global", "fixed"])
SHARES = st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=30)


def spent_by(budget: Budget, shares: list[float]) -> tuple[list[float], list[float]]:
    """(allowances, spends) of a text that takes these shares of what each step may spend."""
    account, allowances, spends = opened_accounts([budget]), [], []
    for share in shares:
        allowances.append(allowance(account).item())
        spends.append(math.floor(allowances[-1] * share / SPEND_QUANTUM) * SPEND_QUANTUM)
        account = charged(account, torch.tensor([spends[-1:]], dtype=torch.float64))
    return allowances, spends


@given(k=NATS, debt=NATS | st.just(math.inf), schedule=SCHEDULES, shares=SHARES)
def test_allowances_are_the_papers_and_spends_never_exceed_the_bound(k, debt, schedule, shares):
    """Of a rule that takes these shares of each allowance."""
    horizon = len(shares)
    budget = Budget(per_step=k, total=k * horizon, horizon=horizon, debt=debt, schedule=schedule)
    allowances, spends = spent_by(budget, shares)
    for step, nats in enumerate(allowances):
        spent = math.fsum(spends[:step])
        paper = reference_decoder.allowance(step, k, k * horizon, debt, spent, schedule)
        assert paper - 2 * SPEND_QUANTUM - 1e-12 <= nats <= paper + 1e-12
        assert spends[step] <= nats
    exact = sum((Fraction(spend) for spend in spends), Fraction(0))
    assert exact <= Fraction(budget.bound)
    assert sum(spends) == math.fsum(reversed(spends)) == exact
    assert budget.is_safe_only == ((schedule != "fixed" and debt >= k * horizon) or k == 0.0)


CAPPED = {
    "k": NATS | st.floats(0.0, 1e-8) | st.floats(0.0, 3e4),
    "debt": NATS | st.just(math.inf),
    "bank": NATS | st.sampled_from([0.0, 2.0**-40, 1e6]),
    "shares": st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=12),
}


@given(**CAPPED)
def test_with_a_bank_no_window_of_steps_spends_more_than_it_and_the_steps_accrue(
    k, debt, bank, shares
):
    """Exactly, and in float64 however it is computed; each step may spend what a token bucket in
    fractions holds, but for what rounding keeps back."""
    horizon = len(shares)
    budget = Budget(per_step=k, total=k * horizon, horizon=horizon, debt=debt, bank=bank)
    allowances, spends = spent_by(budget, shares)
    assert list(budget.allowances(spends)) == allowances
    for start, end in itertools.combinations(range(horizon + 1), 2):
        window = sum(map(Fraction, spends[start:end]))
        assert window <= Fraction(bank) + (end - start) * Fraction(k)
        assert window <= bank + (end - start) * k
    assert sum(spends) <= budget.bound
    if debt == math.inf:
        return
    balance = Fraction(k) - Fraction(debt)
    for step, (nats, spend) in enumerate(zip(allowances, spends, strict=True)):
        assert max(Fraction(0), balance) + Fraction(1e-10) - Fraction(nats) >= 0
        assert balance - Fraction(nats) < (step + 1) * (BANK_MARGIN + 2 * SPEND_QUANTUM)
        balance = min(balance - Fraction(spend), Fraction(bank)) + Fraction(k)


@given(k=st.floats(1e-8, 40.0), debt=NATS, more=NATS, shares=SHARES)
def test_a_bank_that_holds_the_whole_bound_is_none(k, debt, more, shares):
    horizon = len(shares)
    plain = Budget(per_step=k, total=k * horizon, horizon=horizon, debt=debt)
    assert spent_by(replace(plain, bank=plain.bound + more), shares) == spent_by(plain, shares)


@given(k=NATS, debt=NATS, shares=SHARES)
def test_a_bank_of_nothing_is_a_fixed_step_once_the_debt_is_paid(k, debt, shares):
    budget = Budget(per_step=k, total=k * len(shares), horizon=len(shares), debt=debt, bank=0.0)
    for step, nats in enumerate(spent_by(budget, shares)[0]):
        accrued = min(k, max(0.0, (step + 1) * k - debt))
        assert accrued - BANK_MARGIN - 2 * SPEND_QUANTUM <= nats <= accrued + 1e-12


@pytest.mark.parametrize("schedule", ["fixed", "global"])
def test_a_bank_needs_a_schedule_that_carries_nats_over(schedule):
    for make in (Anchored, NoOpt):
        with pytest.raises(ValueError, match=f"^bank caps .*\"adaptive\".*, got '{schedule}'$"):
            make(k=1.0, budget=schedule, bank=5.0)
    assert Anchored(k=1.0, budget=schedule, bank=None).settings().keys() >= {"k", "K", "budget"}


@pytest.mark.parametrize("bank", [-1.0, 2.0**21, math.inf])
def test_a_bank_is_as_large_as_a_budget_can_be(bank):
    with pytest.raises(ValueError, match=r"^bank must be in \[0, 1048576\] nats, got"):
        Anchored(k=1.0, bank=bank)


def test_a_bank_is_recorded_where_there_is_one_alone():
    """So ledgers, sweeps and calibrations from before there were banks are read as they were."""
    assert "bank" not in Anchored(k=1.0).settings()
    capped = Anchored(K=30.0, bank=4)
    assert capped.settings()["bank"] == 4.0
    assert make_rule("anchored", capped.settings()) == capped
    budget = capped.budget_for(horizon=10, k=None)
    assert (budget.per_step, budget.total, budget.bank) == (3.0, 30.0, 4.0)


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
