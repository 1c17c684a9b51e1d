"""Prefix debt: what a prompt that the risky model knows too well costs before the first token."""

import math
from typing import Literal

import torch
from torch import Tensor

DebtMode = Literal["top", "average", "none"]


def log_likelihood_ratios(risky_log_probs: Tensor, safe_log_probs: Tensor) -> Tensor:
    """log p_r(x_i) - log p_s(x_i) of prompt tokens, in nats, any shape, float64.

    A token that the safe model gives no probability has ratio +inf, whatever the risky model says.
    """
    ratios = risky_log_probs.double() - safe_log_probs.double()
    return ratios.masked_fill(safe_log_probs == float("-inf"), float("inf"))


def prefix_debt(ratios: Tensor, *, mode: DebtMode = "top", window: int = 5) -> float:
    """Nats that a prompt owes.

    ratios: (num_positions,) log-likelihood ratios of the prompt's non-special tokens but the first.
    mode: "top" is the mean of the `window` largest positive parts (all of them if there are fewer),
    "average" the positive part of the mean, "none" zero. Without positions the debt is 0.
    A ratio of +inf makes the debt infinite, whatever stands beside it. Raises ValueError for NaN.
    Source: paper, section "Prefix debt" and algorithm PrefixDebt; special tokens and padding do not
    count as positions here, so the debt of a prompt does not depend on its batch.
    """
    if ratios.isnan().any():
        raise ValueError("the prompt's log-likelihood ratios hold NaN, of which no debt follows")
    if mode == "none" or ratios.numel() == 0:
        return 0.0
    if ratios.isposinf().any():
        return math.inf  # a mean with a token that the risky model never writes would be NaN
    if mode == "average":
        return max(0.0, ratios.mean().item())
    largest = torch.topk(ratios.clamp(min=0.0), min(window, ratios.numel())).values
    return largest.mean().item()
