"""The risky model alone: no bound."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..budget import Budget
from .categorical import Categorical
from .rule import NextToken, StepInputs


@dataclass(frozen=True, slots=True)
class RiskyOnly:
    """p* = p_r at every step; not certified: the reported spend may be infinite."""

    @property
    def name(self) -> str:
        return "risky_only"

    @property
    def is_certified(self) -> bool:
        return False

    @property
    def charges_debt(self) -> bool:
        return False

    def settings(self) -> dict[str, Any]:
        return {}

    def budget_for(self, *, horizon: int, k: float | None, ratios: Tensor) -> Budget:
        # Fixed: an allowance that an infinite spend used up would let the risky model rest.
        return Budget(per_step=math.inf, total=math.inf, horizon=horizon, schedule="fixed")

    def next_token(self, inputs: StepInputs) -> NextToken:
        risky, safe = inputs.warp(inputs.risky_logits), inputs.warp(inputs.safe_logits)
        return Categorical.draw(risky, safe, inputs.uniform)
