"""The safe model alone: spends nothing."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.projection import project_kl
from ..budget import Budget
from .rule import NextToken, StepInputs


@dataclass(frozen=True, slots=True)
class SafeOnly:
    """p* = p_s at every step; certified, with a bound of 0 nats."""

    @property
    def name(self) -> str:
        return "safe_only"

    @property
    def is_certified(self) -> bool:
        return True

    @property
    def charges_debt(self) -> bool:
        return False

    def settings(self) -> dict[str, Any]:
        return {}

    def budget_for(self, *, horizon: int, k: float | None, ratios: Tensor) -> Budget:
        return Budget(per_step=0.0, total=0.0, horizon=horizon)

    def next_token(self, inputs: StepInputs) -> NextToken:
        safe = inputs.warp(inputs.safe_logits)
        return project_kl(safe, safe, torch.zeros_like(inputs.budget), inputs.uniform)
