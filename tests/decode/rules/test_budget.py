"""Allowances against exact arithmetic and the paper's formulas, debts against their definition."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored.decode.rules.anchored import Anchored, Pathwise
from anchored.decode.rules.budget import Budget, log_likelihood_ratios, opened_accounts, prefix_debt
from anchored.kernels.spend import (
    BANK_MARGIN,
    BUDGET_CAP,
    SPEND_QUANTUM,
    allowance,
    ceil_to_quantum,
    charged,
    floor_to_quantum,
    usable_budget,
)

NATS = st.floats(0.0, 40.0)
DEBTS = NATS | st.just(math.inf)
SCHEDULES = st.sampled_from(["adaptive", "global", "fixed"])
SHARES = st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=30)


@given(st.floats(-(2.0**20), 2.0**20))
def test_rounding_brackets_the_value_by_less_than_a_quantum(nats):
    value = torch.tensor([nats], dtype=torch.float64)
    low, high = floor_to_quantum(value), ceil_to_quantum(value)
    assert low <= value <= high
    assert high - low in (0.0, SPEND_QUANTUM)
    assert (low / SPEND_QUANTUM).frac() == 0


def test_a_budget_is_capped_and_rounded_down():
    budget = torch.tensor([math.inf, 1e-10, -3.0, 0.5], dtype=torch.float64)
    assert usable_budget(budget).tolist() == [BUDGET_CAP, 0.0, -3.0, 0.5]


def spent_by(budget: Budget, shares: list[float]) -> tuple[list[float], list[float]]:
    """(allowances, spends) of a text that takes these shares of what each step may spend; a
    negative number gives so many nats back, where anything may be spent."""
    account, allowances, spends = opened_accounts([budget]), [], []
    for share in shares:
        allowances.append(allowance(account).item())
        nats = share if share < 0.0 < allowances[-1] else allowances[-1] * max(share, 0.0)
        spends.append(math.floor(nats / SPEND_QUANTUM) * SPEND_QUANTUM)
        account = charged(account, torch.tensor([spends[-1:]], dtype=torch.float64))
    return allowances, spends


@given(k=NATS, debt=DEBTS, schedule=SCHEDULES, shares=SHARES)
def test_allowances_are_the_papers_and_spends_never_exceed_the_bound(k, debt, schedule, shares):
    horizon = len(shares)
    budget = replace(Budget.of(horizon=horizon, k=k, schedule=schedule), debt=debt)
    allowances, spends = spent_by(budget, shares)
    for step, nats in enumerate(allowances):
        accrued = {"adaptive": (step + 1) * k, "global": k * horizon, "fixed": k}[schedule]
        used = 0.0 if schedule == "fixed" else debt + math.fsum(spends[:step])
        paper = max(0.0, accrued - used)
        assert paper - 2 * SPEND_QUANTUM - 1e-12 <= nats <= paper + 1e-12
        assert spends[step] <= nats
    exact = sum((Fraction(spend) for spend in spends), Fraction(0))
    assert exact <= Fraction(budget.bound)
    assert sum(spends) == math.fsum(reversed(spends)) == exact
    assert budget.is_safe_only == ((schedule != "fixed" and debt >= k * horizon) or k == 0.0)


GIVES_BACK = st.floats(-30.0, -1e-9)
BANKED = {
    "k": NATS | st.floats(0.0, 1e-8) | st.floats(0.0, 3e4),
    "debt": DEBTS,
    "bank": NATS | st.sampled_from([0.0, 2.0**-40, 6e5]),
    "shares": st.lists(st.sampled_from([0.0, 0.3, 1.0]) | GIVES_BACK, min_size=1, max_size=12),
}


def assert_windows_hold(spends: list[float], k: float, bank: float) -> None:
    """Exactly, but for the rounding of that sum where a window begins with the text."""
    for start, end in itertools.combinations(range(len(spends) + 1), 2):
        window, width = sum(map(Fraction, spends[start:end])), end - start
        assert window <= bank + width * k
        rounding = Fraction(math.ulp(bank + width * k)) if start == 0 else 0
        assert window <= Fraction(bank) + width * Fraction(k) + rounding


@given(**BANKED)
def test_with_a_bank_no_prefix_and_no_window_spends_more_than_was_there(k, debt, bank, shares):
    """Each step may spend what a token bucket in fractions holds, which is full at the start, but
    for what rounding keeps back."""
    horizon = len(shares)
    budget = replace(Budget.of(horizon=horizon, k=k, bank=bank), debt=debt)
    allowances, spends = spent_by(budget, shares)
    assert list(budget.allowances(spends)) == allowances
    assert_windows_hold(spends, k, bank)
    if debt == math.inf:
        assert budget.bound == 0.0 == max(allowances)
        return
    balance = Fraction(bank) + Fraction(k) - Fraction(debt)
    for step, (nats, spend) in enumerate(zip(allowances, spends, strict=True)):
        assert sum(spends[: step + 1]) <= budget.bound
        assert Fraction(nats) <= max(Fraction(0), balance) + 2 * Fraction(math.ulp(budget.total))
        assert balance - Fraction(nats) < (step + 1) * (BANK_MARGIN + 2 * SPEND_QUANTUM)
        balance = min(balance - Fraction(spend), Fraction(bank)) + Fraction(k)
    at_once = charged(opened_accounts([budget]), torch.tensor([spends], dtype=torch.float64))
    assert allowance(at_once).item() == list(budget.allowances([*spends, 0.0]))[-1]
    left = float(balance - Fraction(k))
    assert budget.left_in_bank(spends) == pytest.approx(left, abs=1e-8)
    assert budget.left_in_bank(spends) <= bank


@given(**BANKED, cut=st.integers(0, 12), more=NATS)
def test_a_text_that_goes_on_has_the_bucket_that_its_beginning_left(
    k, debt, bank, shares, cut, more
):
    """Up to a quantum or two: what both parts spend is within one bound, and in no window over
    their seam is more spent than in a window of one text; `more`: of a later debt."""
    one = replace(Budget.of(horizon=len(shares), k=k, bank=bank), debt=debt)
    _, first = spent_by(replace(one, horizon=cut), shares[:cut])
    left = one.left_in_bank(first)
    assert left == -math.inf if debt == math.inf else left <= bank
    if not shares[cut:]:
        return
    later = Budget.of(horizon=len(shares[cut:]), k=k, bank=bank).going_on(left)
    allowances, second = spent_by(later, shares[cut:])
    spends = [*first, *second]
    at_once = [*one.allowances(spends)][cut:]
    assert allowances == pytest.approx(at_once, abs=1e-8)
    assert_windows_hold(spends, k, bank)
    assert sum(spends) <= one.bound + 1e-9
    indebted, _ = spent_by(replace(later, debt=max(later.debt, more)), shares[cut:])
    assert indebted[0] <= allowances[0]


def test_a_budget_is_a_full_bank_and_the_nats_of_its_steps():
    for rule, nats in (
        (Anchored(K=30.0, bank=4), (2.6, 30.0, 4.0)),
        (Anchored(k=2.6, bank=4), (2.6, 30.0, 4.0)),
        (Anchored(K=30.0), (3.0, 30.0, None)),
        (Pathwise(k=0, bank=7), (0.0, 7.0, 7.0)),
    ):
        budget = rule.budget_for(horizon=10, k=None)
        assert (budget.per_step, budget.total, budget.bank) == nats
    assert Pathwise().budget_for(horizon=10, k=0.5).total == 25.0
    with pytest.raises(ValueError, match=r"^K is the bank and .*, got K=3 < bank=4$"):
        Anchored(K=3.0, bank=4.0)
    with pytest.raises(ValueError, match=r"^K = bank \+ k \* horizon .* must be in .* nats"):
        Pathwise().budget_for(horizon=2**21, k=None)
    with pytest.raises(ValueError, match=r"^a bank is filled by budget=.*, got 'fixed'$"):
        Anchored(k=1.0, budget="fixed", bank=5.0)


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
def test_a_token_that_the_safe_model_never_writes_costs_all_and_nan_is_no_debt(mode, nats):
    risky, safe = torch.tensor([-1.0, -math.inf, -math.inf]), torch.tensor([-2.0, -math.inf, -1.0])
    ratios = log_likelihood_ratios(risky, safe)
    assert ratios.tolist() == [1.0, math.inf, -math.inf]
    assert prefix_debt(ratios, mode=mode) == nats
    with pytest.raises(ValueError, match="hold NaN"):
        prefix_debt(torch.tensor([3.0, math.nan, 1.0]), mode=mode)
