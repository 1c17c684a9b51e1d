"""Accounts of requests whose rows a walk decides: their budgets, and what they have spent."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from .spend import BUDGET_CAP, floor_to_quantum

# B requests.

# Columns of an account, float64: k, K and debt in nats, the schedule, steps taken, nats spent.
PER_STEP, TOTAL, DEBT, SCHEDULE, STEP, SPENT = range(6)
NUM_FIELDS = 6

SCHEDULES = {"adaptive": 0, "global": 1, "fixed": 2}


def new_accounts(
    per_step: Sequence[float],
    total: Sequence[float],
    debt: Sequence[float],
    schedule: Literal["adaptive", "global", "fixed"],
    device: torch.device,
) -> Tensor:
    """Budgets of B requests at their first step, nats; see `decode.rules.budget.Budget`.

    Returns: (B, NUM_FIELDS) float64.
    Raises: ValueError for an unknown schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    rows = [
        [k, total_nats, debt_nats, float(SCHEDULES[schedule]), 0.0, 0.0]
        for k, total_nats, debt_nats in zip(per_step, total, debt, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64, device=device)


def empty_accounts(num_requests: int, device: torch.device) -> Tensor:
    """Accounts that may spend nothing, at step 0; (B, NUM_FIELDS) float64."""
    return torch.zeros(num_requests, NUM_FIELDS, dtype=torch.float64, device=device)


def copy_steps(accounts: Tensor, source: Tensor) -> None:
    """Set the steps taken to those of other accounts; nothing waits for the device."""
    accounts[:, STEP] = source[:, STEP]


def allowance(accounts: Tensor, position: int, spent: Tensor) -> Tensor:
    """(B,) float64 nats, k_t of the step `position` steps ahead; as `decode.rules.budget` has it.

    spent: (B,) nats, all that was spent before that step.
    """
    step = accounts[:, STEP] + position
    per_step, total = accounts[:, PER_STEP], accounts[:, TOTAL]
    schedule = accounts[:, SCHEDULE]
    accrued = torch.where(
        schedule == SCHEDULES["adaptive"], torch.minimum(per_step * (step + 1.0), total), total
    )
    banked = (_rounded_down(accrued - accounts[:, DEBT]) - spent).clamp(min=0.0)
    return torch.where(schedule == SCHEDULES["fixed"], _rounded_down(per_step), banked)


def _rounded_down(nats: Tensor) -> Tensor:
    return floor_to_quantum(nats.nan_to_num(nan=0.0).clamp(0.0, BUDGET_CAP))
