"""Plain float64 definitions of the projections: slow, exact, and what solvers are judged by.

The tests, `verify` and the reference decoder rest on this file alone. It shares nothing with the
solvers but the gap at which a logit counts as banned.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from .spend import BAN_GAP

# B requests, V vocabulary. Logits may be log-probabilities: only their differences count.

NUM_BISECTIONS = 200
"""Halvings of a weight in [0, 1]: it resolves weights down to the least float64."""

NUM_SCALE_BISECTIONS = 80
"""Halvings of log c, which lies within 2**21 nats: to less than 1e-17 nats."""


def log_softmax(logits: Tensor, *, ban_gap: float = BAN_GAP) -> Tensor:
    """(B, V) float64 log-probabilities; NaN in a row of NaN, of +inf, or all -inf.

    A logit of -inf, or one that is `ban_gap` nats below the largest of its row, is banned: -inf.
    """
    below = logits.double() - logits.double().amax(-1, keepdim=True)
    return _normalized(below.masked_fill(below < -ban_gap, -torch.inf))


def tilted_log_probs(risky_logits: Tensor, safe_logits: Tensor, weight: Tensor) -> Tensor:
    """log of p_s^(1-weight) p_r^weight, normalized on the common support.

    risky_logits, safe_logits: (B, V). weight: (B,) in [0, 1].
    Returns: (B, V) float64, -inf off the common support; NaN in a row that has none.
    """
    safe, risky = log_softmax(safe_logits), log_softmax(risky_logits)
    beta = weight.double()[:, None]
    mixed = (1.0 - beta) * safe + beta * risky
    return _normalized(torch.where(_is_shared(safe, risky), mixed, -torch.inf))


def kl_divergence(log_probs: Tensor, safe_logits: Tensor, *, ban_gap: float = BAN_GAP) -> Tensor:
    """KL(p || p_s) in nats, (B,) float64, for log_probs (B, V).

    Infinite where p has mass, however little, that p_s lacks.
    """
    ratio = _log_ratio(log_probs.double(), log_softmax(safe_logits, ban_gap=ban_gap))
    is_infinite = (ratio == torch.inf).any(-1)
    nats = (log_probs.double().exp() * ratio).sum(-1).clamp_min(0.0)
    return torch.where(is_infinite, torch.inf, nats)


def max_divergence(log_probs: Tensor, safe_logits: Tensor, *, ban_gap: float = BAN_GAP) -> Tensor:
    """D_inf(p || p_s) in nats, the largest log-ratio, (B,) float64."""
    return _log_ratio(log_probs.double(), log_softmax(safe_logits, ban_gap=ban_gap)).amax(-1)


DIVERGENCES: Final[Mapping[str, Callable[..., Tensor]]] = MappingProxyType(
    {"kl": kl_divergence, "max": max_divergence}
)
"""The divergences that a rule may name: what a certified rule spends at a step is that one."""


def support_floor(risky_logits: Tensor, safe_logits: Tensor) -> Tensor:
    """-log p_s(S) in nats, S the tokens both models allow, (B,) float64; inf if S is empty."""
    safe, risky = log_softmax(safe_logits), log_softmax(risky_logits)
    return -torch.where(_is_shared(safe, risky), safe, -torch.inf).logsumexp(-1)


def project_kl(risky_logits: Tensor, safe_logits: Tensor, budget: Tensor) -> Tensor:
    """The largest feasible weight, (B,) float64, by bisection; NaN where p* = p_s is forced.

    Source: paper algorithm ProjectKL with the support rules: nothing but p_s where the budget is
    not positive or below `support_floor`.
    """
    budget = budget.double()
    low, high = torch.zeros_like(budget), torch.ones_like(budget)
    for step in range(NUM_BISECTIONS):
        # The first trial is 1 itself: p_r restricted to the common support may be feasible.
        trial = high if step == 0 else 0.5 * (low + high)
        log_probs = tilted_log_probs(risky_logits, safe_logits, trial)
        is_feasible = kl_divergence(log_probs, safe_logits) <= budget
        low, high = torch.where(is_feasible, trial, low), torch.where(is_feasible, high, trial)
    is_forced = (budget <= 0.0) | (support_floor(risky_logits, safe_logits) > budget)
    return torch.where(is_forced, torch.nan, low)


def clipped_log_probs(
    risky_logits: Tensor, safe_logits: Tensor, budget: Tensor, log_scale: Tensor
) -> Tensor:
    """log min(c p_r, e^budget p_s) on the common support, not normalized; (B, V) float64.

    p_r is renormalized on the common support. log_scale: (B,) float64, log c.
    """
    risky, cap, is_shared = _risky_and_cap(risky_logits, safe_logits, budget)
    return torch.where(is_shared, torch.minimum(risky + log_scale[:, None], cap), -torch.inf)


def project_max(risky_logits: Tensor, safe_logits: Tensor, budget: Tensor) -> Tensor:
    """log c of the clipped distribution, (B,) float64, by bisection; NaN where p* = p_s is forced.

    Source: paper, proposition on optimal Renyi clipping.
    """
    risky, cap, is_shared = _risky_and_cap(risky_logits, safe_logits, budget)
    # At c = 1 the mass is at most 1. Where all is clipped it is that of the cap, at least 1.
    low = torch.zeros_like(budget, dtype=torch.float64)
    high = torch.where(is_shared, cap - risky, 0.0).amax(-1).clamp_min(0.0)
    for _ in range(NUM_SCALE_BISECTIONS):
        trial = 0.5 * (low + high)
        mass = torch.minimum(risky + trial[:, None], cap).logsumexp(-1)
        low, high = torch.where(mass <= 0.0, trial, low), torch.where(mass <= 0.0, high, trial)
    is_forced = (budget <= 0.0) | (support_floor(risky_logits, safe_logits) > budget)
    return torch.where(is_forced, torch.nan, low)


def _risky_and_cap(
    risky_logits: Tensor, safe_logits: Tensor, budget: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """log p_r renormalized on the common support, log e^budget p_s there, and the support."""
    safe, risky = log_softmax(safe_logits), log_softmax(risky_logits)
    is_shared = _is_shared(safe, risky)
    cap = torch.where(is_shared, safe + budget.double()[:, None], -torch.inf)
    return _normalized(torch.where(is_shared, risky, -torch.inf)), cap, is_shared


def _is_shared(safe: Tensor, risky: Tensor) -> Tensor:
    return (safe > -torch.inf) & (risky > -torch.inf)


def _log_ratio(log_probs: Tensor, safe: Tensor) -> Tensor:
    """log p / p_s (B, V); 0 where p has no mass."""
    return torch.where(log_probs == -torch.inf, 0.0, log_probs - safe)


def _normalized(log_weights: Tensor) -> Tensor:
    return log_weights - log_weights.logsumexp(-1, keepdim=True)
