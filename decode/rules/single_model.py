"""One model alone, and the ablation of the safe one: baselines of the paper."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...kernels.projection import project_kl
from ...kernels.sampler import coupled_sample
from .budget import Budget
from .rule import NextToken, StepInputs


@dataclass(frozen=True, slots=True)
class Categorical:
    """p* proportional to exp(logits), beside the safe model that it is compared with.

    The spend is KL(p*||p_s) in float64 nats, infinite where p* leaves the safe model's support.
    """

    star: Tensor
    """(batch, vocab_size) float64 log p*."""
    safe: Tensor
    """(batch, vocab_size) float64 log p_s."""
    weight: Tensor
    spend: Tensor
    is_valid: Tensor
    token_ids: Tensor | None
    accepted: Tensor | None

    @classmethod
    def draw(cls, logits: Tensor, safe_logits: Tensor, uniform: Tensor | None) -> "Categorical":
        """Normalise logits (batch, vocab_size) and draw by the coupled sampler where asked."""
        is_valid = _is_distribution(logits) & _is_distribution(safe_logits)
        star, safe = _log_probs(logits, is_valid), _log_probs(safe_logits, is_valid)
        token_ids = accepted = None
        if uniform is not None:
            token_ids, accepted = coupled_sample(safe, star, uniform)
            token_ids = token_ids.masked_fill(~is_valid, -1)
        spend = _divergence(star, safe)
        return cls(star, safe, torch.ones_like(spend), spend, is_valid, token_ids, accepted)

    def log_probs(self) -> Tensor:
        """log p* (batch, vocab_size) float64, normalised."""
        return self.star

    def token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p* of one token per row, (batch,) float64."""
        return self.star.gather(-1, token_ids[:, None])[:, 0]

    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token per row, (batch,) float64."""
        return self.safe.gather(-1, token_ids[:, None])[:, 0]


def _is_distribution(logits: Tensor) -> Tensor:
    largest = logits.amax(-1)  # nan if any entry is
    return torch.isfinite(largest)


def _log_probs(logits: Tensor, is_valid: Tensor) -> Tensor:
    return torch.where(is_valid[:, None], logits.double(), 0.0).log_softmax(-1)


def _divergence(star: Tensor, safe: Tensor) -> Tensor:
    terms = star.exp() * (star - safe)
    return terms.masked_fill(star == float("-inf"), 0.0).sum(-1).clamp(min=0.0)


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
