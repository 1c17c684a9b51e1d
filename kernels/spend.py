"""The grid of budgets and spends, on which float64 sums are exact, and accounts on it."""

import math
import sys
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

SPEND_QUANTUM = 2.0**-32
"""Nats; every spend is a multiple of it."""

BUDGET_CAP = 2.0**20
"""Nats; multiples of the quantum below it take 52 bits, so sums up to twice the cap are exact."""

MAX_DIVERGENCE_CAP = 600.0
"""Nats of a step that `project_max` uses at most: a token that is clipped at e**600 p_s still has a
normal float64 weight wherever it carries mass."""

BAN_GAP = BUDGET_CAP
"""Nats below its row's largest logit, beyond which a finite logit counts as banned, like -inf.

For both models, divergences and backends, and for `kernels.reference`. Masks are often a large
finite number: no budget pays for mass there, and up to this gap float64 resolves log-ratios to 1e-9
nats, which the margins of the solvers cover. At 746 nats a weight is 0 already."""

EPSILON = sys.float_info.epsilon

BITS_PER_NAT = 1.0 / math.log(2.0)

BAN_BITS = -BAN_GAP * BITS_PER_NAT
"""BAN_GAP in bits: log2-weights below it are those of banned tokens."""


def floor_to_quantum(nats: Tensor) -> Tensor:
    """Largest multiple of SPEND_QUANTUM that is not above each value.

    nats: any shape, float64, |nats| <= 2**63 (beyond that a float64 is a multiple already).
    Returns: the same shape and dtype, exact: scaling by a power of two does not round.
    """
    return torch.floor(nats / SPEND_QUANTUM) * SPEND_QUANTUM


def ceil_to_quantum(nats: Tensor) -> Tensor:
    """Smallest multiple of SPEND_QUANTUM that is not below each value; see `floor_to_quantum`."""
    return torch.ceil(nats / SPEND_QUANTUM) * SPEND_QUANTUM


def check_budget(budget: Tensor, num_rows: int) -> None:
    """Raise ValueError unless the budget is (num_rows,) of a float dtype; its values may be any."""
    if budget.shape != (num_rows,) or not budget.dtype.is_floating_point:
        raise ValueError(
            f"budget must be ({num_rows},) of a float dtype, "
            f"got {tuple(budget.shape)} {budget.dtype}"
        )


def usable_budget(budget: Tensor) -> Tensor:
    """The part of each budget that spends can fill: capped, rounded down to the quantum.

    budget: (B,) of a float dtype, nats; may be negative or infinite.
    Returns: (B,) float64 on the CPU.
    Raises: ValueError for a NaN.
    """
    budget = budget.to("cpu", torch.float64).clamp(min=-BUDGET_CAP, max=BUDGET_CAP)
    if any(map(math.isnan, budget.tolist())):
        raise ValueError(f"budget must not be NaN, got {budget.tolist()}")
    return floor_to_quantum(budget)


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
