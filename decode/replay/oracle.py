"""The laws of one step and how far they are apart, in plain float64: what `verify` believes.

Nothing is shared with the solvers in kernels/ but the gap at which a logit counts as banned.
"""

import math

import torch
from torch import Tensor

from ...kernels.spend import BAN_GAP

# V symbols. Laws are (V,) float64 log-probabilities in nats, -inf where banned.

NUM_BISECTIONS = 64
"""Halvings of a bracket in log c, at most 2**21 nats wide: to 1e-13 nats."""


def law_of(logits: Tensor, *, gap: float = BAN_GAP) -> Tensor:
    """log softmax of one row of logits (V,), any float dtype.

    A logit of -inf, or `gap` nats below the largest, is banned. NaN everywhere where there is no
    law: for NaN, +inf, or a row all -inf.
    """
    below = logits.double() - logits.double().max()
    return _normalised(below.masked_fill(below < -gap, -math.inf))


def tilted(safe: Tensor, risky: Tensor, weight: float) -> Tensor:
    """p_s^(1-weight) p_r^weight, normalised on the symbols that both laws allow; NaN if none is."""
    is_shared = _is_shared(safe, risky)
    return _normalised(torch.where(is_shared, (1.0 - weight) * safe + weight * risky, -math.inf))


def clipped(safe: Tensor, risky: Tensor, nats: float) -> tuple[Tensor, float]:
    """(min(c p_r, e^nats p_s) on the symbols that both laws allow, log c), with sum 1.

    p_r is renormalised there. Where even e^nats p_s has no mass of 1 there, it is p_s renormalised,
    and log c is inf.
    """
    is_shared = _is_shared(safe, risky)
    risky = _normalised(torch.where(is_shared, risky, -math.inf))
    cap = torch.where(is_shared, safe + nats, -math.inf)
    if not _log_mass(cap) > 0.0:
        return _normalised(cap), math.inf
    # At c = 1 the mass is at most 1; where all is clipped it is above 1.
    low, high = 0.0, (cap - risky)[is_shared].max().clamp_min(0.0).item()
    for _ in range(NUM_BISECTIONS):
        middle = 0.5 * (low + high)
        is_below = _log_mass(torch.minimum(risky + middle, cap)) <= 0.0
        low, high = (middle, high) if is_below else (low, middle)
    return torch.minimum(risky + low, cap), low


def kl(star: Tensor, safe: Tensor) -> float:
    """KL(star || safe) in nats; infinite where star has mass that safe lacks."""
    ratios = log_ratio(star, safe)
    if (ratios == math.inf).any():  # a mass below the least number too
        return math.inf
    return (star.exp() * ratios).sum().clamp_min(0.0).item()


def largest_ratio(star: Tensor, safe: Tensor) -> float:
    """The largest log star / safe in nats: the divergence of order infinity."""
    return log_ratio(star, safe).max().clamp_min(0.0).item()


def floor(safe: Tensor, risky: Tensor) -> float:
    """-log p_s(S) in nats, S the symbols that both laws allow; infinite where there is none."""
    return max(0.0, -_log_mass(torch.where(_is_shared(safe, risky), safe, -math.inf)))


def log_ratio(star: Tensor, safe: Tensor) -> Tensor:
    """log star / safe (V,); 0 where star has no mass."""
    return torch.where(star == -math.inf, 0.0, star - safe)


def _is_shared(safe: Tensor, risky: Tensor) -> Tensor:
    return (safe > -math.inf) & (risky > -math.inf)


def _log_mass(log_weights: Tensor) -> float:
    return log_weights.logsumexp(-1).item()


def _normalised(log_weights: Tensor) -> Tensor:
    return log_weights - log_weights.logsumexp(-1)
