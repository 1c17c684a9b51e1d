"""The grid of budgets and spends, on which float64 sums are exact, and the ends of both."""

import math
import sys

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

For both models, divergences and backends, and for `decode.replay.oracle`. Masks are often a large
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


def usable_budget(budget: Tensor, num_rows: int, device: torch.device) -> Tensor:
    """The part of each budget that spends can fill: capped, rounded down to the quantum.

    budget: (num_rows,) of a float dtype, nats; may be negative or infinite.
    Returns: (num_rows,) float64 on the device.
    Raises: ValueError for another shape or dtype, or a NaN.
    """
    if budget.shape != (num_rows,) or not budget.dtype.is_floating_point:
        raise ValueError(
            f"budget must be ({num_rows},) of a float dtype, "
            f"got {tuple(budget.shape)} {budget.dtype}"
        )
    budget = budget.to(device=device, dtype=torch.float64).clamp(min=-BUDGET_CAP, max=BUDGET_CAP)
    if any(map(math.isnan, budget.tolist())):
        raise ValueError(f"budget must not be NaN, got {budget.tolist()}")
    return floor_to_quantum(budget)
