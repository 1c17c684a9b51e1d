"""The spend quantum: rounding is exact and sums do not depend on order."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored.kernels.spend import (
    BUDGET_CAP,
    SPEND_QUANTUM,
    allowance,
    ceil_to_quantum,
    charged,
    floor_to_quantum,
    new_accounts,
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


K, DEBTS = st.floats(0.0, 50.0), st.floats(0.0, 20.0)
SCHEDULES = st.sampled_from(["adaptive", "global", "fixed"])
CPU = torch.device("cpu")


@given(K, DEBTS, SCHEDULES)
def test_allowances_are_multiples_of_the_quantum_and_never_above_what_is_left(k, debt, schedule):
    """So that spends up to them add up without rounding."""
    total = 30 * k
    spent = ceil_to_quantum(torch.tensor([[0.7 * k]], dtype=torch.float64))
    account = charged(new_accounts([k], [total], [debt], schedule, None, CPU), spent)
    nats = allowance(account)
    assert (nats / SPEND_QUANTUM).frac() == 0
    accrued = {"adaptive": 2 * k, "global": total}.get(schedule, k)
    used = 0.0 if schedule == "fixed" else debt + spent.item()
    exact = max(0.0, accrued - used)
    assert exact - 2 * SPEND_QUANTUM <= nats.item() <= exact + 1e-12


@given(K, DEBTS, SCHEDULES, st.lists(st.floats(0.0, 60.0), min_size=1, max_size=20))
def test_without_a_bank_the_next_step_may_spend_what_it_always_could(k, debt, schedule, nats):
    """The formula that ledgers were written by before there were banks, bit for bit."""
    total = k * len(nats)
    spends = ceil_to_quantum(torch.tensor([nats], dtype=torch.float64))
    account = charged(new_accounts([k], [total], [debt], schedule, None, CPU), spends)
    accrued = {"adaptive": min(k * (len(nats) + 1.0), total), "global": total, "fixed": k}[schedule]
    owed = 0.0 if schedule == "fixed" else debt
    there = max(0.0, accrued - owed) // SPEND_QUANTUM * SPEND_QUANTUM
    spent = 0.0 if schedule == "fixed" else math.fsum(spends[0].tolist())
    assert allowance(account).item() == max(0.0, there - spent)


@given(K, DEBTS, st.floats(0.0, 30.0), st.lists(st.floats(0.0, 60.0), min_size=2, max_size=20))
def test_many_steps_at_once_give_the_account_of_one_by_one(k, debt, bank, nats):
    spends = ceil_to_quantum(torch.tensor([nats], dtype=torch.float64))
    account = new_accounts([k], [k * len(nats)], [debt], "adaptive", bank, CPU)
    at_once = charged(account, spends)
    for step in range(len(nats)):
        account = charged(account, spends[:, [step]])
    assert torch.equal(at_once, account)
