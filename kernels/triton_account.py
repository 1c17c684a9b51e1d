"""Budgets on the device: what a row may spend, and the banking of what it spent."""

import triton
import triton.language as tl

from . import spend
from .triton_layout import (
    ADAPTIVE,
    DEBT,
    FIXED,
    IS_VALID,
    NUM_ACCOUNT_FIELDS,
    PER_STEP,
    SCHEDULE,
    SPEND,
    SPENT,
    STEP,
    TOTAL,
)
from .triton_solver import QUANTUM

BUDGET_CAP = tl.constexpr(spend.BUDGET_CAP)


@triton.jit
def begin_walk(walk_ptr, account_ptr, request, HAS_ACCOUNT: tl.constexpr):
    """The walk's memory before its first row: that it goes on, and nats spent so far.

    The account itself changes at the end of the walk, when slower programs may not yet have read
    it; so it is read here, before the first barrier, and nowhere later.
    """
    spent = 0.0
    if HAS_ACCOUNT:
        spent = tl.load(account_ptr + request * NUM_ACCOUNT_FIELDS + SPENT)
    tl.store(walk_ptr, 1.0)
    tl.store(walk_ptr + 1, spent)


@triton.jit
def rounded_down(nats):
    """The multiple of the quantum, within +-BUDGET_CAP, that is not above the budget; 0 for NaN."""
    nats = tl.where(nats == nats, nats, 0.0)
    nats = tl.minimum(tl.maximum(nats, -BUDGET_CAP), BUDGET_CAP)
    return tl.floor(nats / QUANTUM) * QUANTUM


@triton.jit
def row_step(account_ptr, request, position):
    """The 0-based step of the generation that a row decides, as float64."""
    return tl.load(account_ptr + request * NUM_ACCOUNT_FIELDS + STEP) + position


@triton.jit
def allowance(account_ptr, request, position, spent):
    """k_t of the step that this row decides; the same arithmetic as `decode.budget`."""
    step = row_step(account_ptr, request, position)
    account_ptr += request * NUM_ACCOUNT_FIELDS
    per_step, total = tl.load(account_ptr + PER_STEP), tl.load(account_ptr + TOTAL)
    debt, schedule = tl.load(account_ptr + DEBT), tl.load(account_ptr + SCHEDULE)
    accrued = tl.where(schedule == ADAPTIVE, tl.minimum(per_step * (step + 1.0), total), total)
    banked = rounded_down(tl.maximum(accrued - debt, 0.0)) - spent
    fixed = rounded_down(tl.maximum(per_step, 0.0))
    return tl.where(schedule == FIXED, fixed, tl.maximum(banked, 0.0))


@triton.jit
def bank(
    walk_ptr,
    facts_ptr,
    flags_ptr,
    account_ptr,
    request,
    split,
    position,
    num_positions,
    is_going,
    HAS_ACCOUNT: tl.constexpr,
):
    """Hand the spent nats to the next row, or to the account if the walk ends here."""
    is_committed = tl.load(flags_ptr + IS_VALID) > 0
    spent = tl.load(walk_ptr + 1) + tl.load(facts_ptr + SPEND)
    tl.store(walk_ptr + 2, is_going.to(tl.float64))
    tl.store(walk_ptr + 3, spent)
    if HAS_ACCOUNT:
        is_last = (position + 1 == num_positions) | ~is_going
        if is_last & (split == 0):
            account_ptr += request * NUM_ACCOUNT_FIELDS
            step = tl.load(account_ptr + STEP) + position + is_committed.to(tl.float64)
            tl.store(account_ptr + STEP, step)
            tl.store(account_ptr + SPENT, spent)
