"""Ablations that switch between both models by a count, of steps or of nats; they bound nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from .budget import Budget, checked_nats
from .rule import BOTH, StepInputs
from .unbounded import Unbounded

COLD_STEPS_PER_NAT = 10
"""Source: paper, section "Ablations"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdStart(Unbounded):
    """p_s for the first round(10 k) steps, p_r from then on; not certified.

    Source: paper, section "Ablations".
    """

    k: float
    """Nats a step of the Anchored rule that it stands beside."""

    name = "cold_start"
    own_streams = BOTH
    looks_back = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", checked_nats("k", self.k))

    @property
    def num_cold_steps(self) -> int:
        return round(COLD_STEPS_PER_NAT * self.k)

    def logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        risky, safe = inputs.warped("risky"), inputs.warped("safe")
        steps = torch.tensor([len(text) for text in inputs.past.texts], device=safe.device)
        return torch.where((steps < self.num_cold_steps)[:, None], safe, risky)


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalSwitch(Unbounded):
    """p_r until the spends reach K, p_s from then on: the last risky step may exceed K, so it is
    not certified.

    What the paper runs as "Global"; `Anchored(budget="global")` projects onto what is left instead.
    """

    K: float
    """Nats."""

    name = "global_switch"
    own_streams = BOTH

    def __post_init__(self) -> None:
        object.__setattr__(self, "K", checked_nats("K", self.K))

    def budget_for(self, *, horizon: int, k: float | None, ratios: Tensor) -> Budget:
        """K for the whole text, or k * horizon where a call gives k."""
        total = self.K if k is None else checked_nats("K = k * horizon", k * horizon)
        return Budget(per_step=total / horizon, total=total, horizon=horizon, schedule="global")

    def logits(self, inputs: StepInputs) -> Tensor:
        is_left = inputs.budget[:, None] > 0.0
        return torch.where(is_left, inputs.warped("risky"), inputs.warped("safe"))
