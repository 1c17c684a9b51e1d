"""The grid of budgets and spends, on which float64 sums are exact, and accounts on it."""

import math
import sys

import torch
from torch import Tensor

from ..fields import MAX_NATS

SPEND_QUANTUM = 2.0**-32
"""Nats; every spend is a multiple of it."""

BUDGET_CAP = MAX_NATS
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


# B requests, T steps.

# Columns of an account, float64: k, K and debt in nats, the schedule, the bank in whole quanta, inf
# without one; steps taken, and nats that are used up: those spent, less those given back, and those
# that were lost as the bank was full.
PER_STEP, TOTAL, DEBT, SCHEDULE, BANK, STEP, USED = range(7)
NUM_FIELDS = 7

BANK_MARGIN = 3.0 * SPEND_QUANTUM
"""Nats that a bank carries over less than it may, so that any w steps spend at most bank + w k,
exactly.

Accrued nats, floor(bank + (t + 1) k - debt), are off by half a quantum for roundings of numbers
below 2**20, and by less than one for the floor: a difference of two is less than two above w k.
The third quantum covers the roundings of bank + w k where that is computed in float64.
"""

SCHEDULES = {"adaptive": 0, "global": 1, "fixed": 2}


def empty_accounts(num_requests: int, device: torch.device) -> Tensor:
    """Accounts that may spend nothing, at step 0; (B, NUM_FIELDS) float64."""
    return torch.zeros(num_requests, NUM_FIELDS, dtype=torch.float64, device=device)


def allowance(accounts: Tensor) -> Tensor:
    """(B,) float64 nats, k_t: the most that the next step of each request may spend."""
    is_fixed = accounts[:, SCHEDULE] == SCHEDULES["fixed"]
    used = accounts[:, USED].masked_fill(is_fixed, 0.0)
    return (_accrued(accounts, 1)[:, 0] - used).clamp(min=0.0)


def charged(accounts: Tensor, spends: Tensor) -> Tensor:
    """The accounts after T steps with these spends, (B, NUM_FIELDS) float64.

    spends: (B, T) float64 nats, T >= 1, multiples of SPEND_QUANTUM where a bound is to hold; a
    negative one gives nats back.
    A balance b_t, accrued nats less those used, goes on as min(b_t - a_t, bank) after a spend a_t:
    so many nats are used that no more than the bank is left. Many steps at once give what they
    give one by one, exactly while running sums lie within +-2**20 nats: a drawn text gives back n
    nats with a chance of at most e**-n.
    """
    after, num_steps = accounts.clone(), spends.shape[1]
    used = accounts[:, USED, None] + spends.cumsum(1)  # (B, T), were nothing lost
    above = _accrued(accounts, num_steps) - (accounts[:, BANK, None] - BANK_MARGIN) - used
    after[:, STEP] += num_steps
    after[:, USED] = used[:, -1] + above.amax(1).clamp(min=0.0)
    return after


def missing(accounts: Tensor) -> Tensor:
    """(B,) float64 nats, >= 0, that the banks lack: the debt that a text which goes on begins with.

    Infinite without a bank, or for an infinite debt.
    """
    per_step, debt, bank, step, used = (
        accounts[:, column] for column in (PER_STEP, DEBT, BANK, STEP, USED)
    )
    left = floor_to_quantum(bank + per_step * step - debt) - used
    return (bank - left).nan_to_num(nan=math.inf, posinf=math.inf).clamp(min=0.0)


def _accrued(accounts: Tensor, num_steps: int) -> Tensor:
    """(B, T) nats that were there for each of the next steps, less the debt, on the grid: a bank
    was full before the first one; fixed ones are k at each, whatever was before."""
    per_step, total, debt = (accounts[:, [column]] for column in (PER_STEP, TOTAL, DEBT))
    schedule, step = accounts[:, [SCHEDULE]], accounts[:, [STEP]]
    bank = accounts[:, [BANK]].nan_to_num(posinf=0.0)
    counts = step + torch.arange(1, num_steps + 1, dtype=step.dtype, device=step.device)
    accrued = torch.where(
        schedule == SCHEDULES["adaptive"], torch.minimum(bank + per_step * counts, total), total
    )
    nats = torch.where(schedule == SCHEDULES["fixed"], per_step, accrued - debt)
    return floor_to_quantum(nats.nan_to_num(nan=0.0).clamp(0.0, BUDGET_CAP))
