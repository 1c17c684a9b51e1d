"""The laws of one step as a ledger claims them, by the oracle, and how rounding moves them."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..ledger import LedgerStep
from . import oracle

# V symbols. A deviation is a standard deviation.

LOGIT_DEVIATION = {torch.float64: 1.5, torch.float32: 8.0, torch.float16: 1.0, torch.bfloat16: 1.0}
"""Of a logit between two batch shapes, in units of the dtype's epsilon times the largest logit.

Measured on the CPU: 16 prompts of mixed lengths decoded together and replayed alone, tiny Llamas of
2 and 3 layers, 600 steps each at temperatures 0.7 and 0.1. Errors of a token's log p_s in these
units, root mean square and largest: float64 0.5, 2.6; float32 2.3, 12.8; float16 0.3, 1.8; bfloat16
0.2, 1.4. With 12 and 16 layers of width 256, bfloat16: 0.6, 2.3. Sums over a law add up as those of
independent errors do: a CDF moved by 1.2 times what that predicts, a divergence by 1.2."""

NUM_DEVIATIONS = 4.0
"""What still counts as rounding: 1.7 to 3 times the largest error measured."""

ARITHMETIC = 2.5e-10
"""Deviation in nats, or of a uniform, that exact logits leave: sums in another order, and the grid
of spends (2**-32)."""

CARRYING_GAP = 64.0
"""Nats below the largest logit beyond which a logit bears no mass that matters (e**-64), as
those of masks, and its own rounding is of no interest."""


def logit_deviation(logits: Tensor, dtype: torch.dtype) -> float:
    """Deviation of one row of warped logits (V,) that a model of this dtype gave.

    Warped, for a temperature divides the rounding like the logit.
    """
    carrying = logits[logits >= logits.max() - CARRYING_GAP]
    largest = carrying.abs().max().item()
    return ARITHMETIC + LOGIT_DEVIATION[dtype] * torch.finfo(dtype).eps * largest


Kind = Literal["kl", "max", "replayed", "alone"]
"""What p* is: a tilted law, a clipped law, whatever the rule gives, or that without a safe model
beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """One row of warped logits of both models, and their deviations."""

    safe: Tensor
    """(V,), -inf where banned."""
    risky: Tensor
    """(V,)."""
    safe_deviation: float
    risky_deviation: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLaws:
    """p_s and p* of a step, (V,) float64 log-probabilities, with deviations in nats."""

    safe: Tensor
    star: Tensor
    divergence: float
    """Of p* from p_s, in nats: KL, or the largest log-ratio."""
    divergence_deviation: float
    spend_deviation: float
    """Of what the rule spends at the recorded budget."""
    safe_deviation: float
    """Of log p_s of any symbol."""
    star_deviation: Tensor
    """(V,) of log p*."""
    star_deviations: tuple[float, float]
    """Parts of it that come from the safe and from the risky model."""
    ratio_deviation: Tensor
    """(V,) of log p* / p_s."""
    log_scales: tuple[float, float] | None = None
    """Least and largest log c that rounding explains; None for laws that are not clipped."""


def step_laws(kind: Kind, logits: Logits, step: LedgerStep, replayed: Tensor) -> StepLaws:
    """The laws that a recorded step claims, from both models' logits.

    replayed: (V,) log p* that the rule gives, for a rule that the oracle has no law of.
    """
    safe, risky = oracle.law_of(logits.safe), oracle.law_of(logits.risky)
    if kind == "replayed":
        either = logits.safe_deviation + logits.risky_deviation
        deviations = 0.0, logits.risky_deviation
        return _smooth(logits, safe, replayed.double(), deviations, either, either)
    if kind == "alone":
        return _alone(logits, replayed.double())
    if step.spend == 0.0 and step.weight == 0.0:
        deviations = logits.safe_deviation, 0.0
        return _smooth(logits, safe, safe, deviations, logits.safe_deviation, ARITHMETIC)
    if kind == "max":
        return _clipped(logits, safe, risky, step.spend)
    return _tilted(logits, safe, risky, step.weight)


def _smooth(
    logits: Logits,
    safe: Tensor,
    star: Tensor,
    star_deviations: tuple[float, float],
    star_deviation: float,
    ratio_deviation: float,
) -> StepLaws:
    """Of a p* whose divergence is a KL; the same deviation for all symbols."""
    deviation = kl_deviation(star, safe, star_deviations, logits.safe_deviation)
    return StepLaws(
        safe=safe,
        star=star,
        divergence=oracle.kl(star, safe),
        divergence_deviation=deviation,
        spend_deviation=deviation,
        safe_deviation=logits.safe_deviation,
        star_deviation=torch.full_like(safe, star_deviation),
        star_deviations=star_deviations,
        ratio_deviation=torch.full_like(safe, ratio_deviation),
    )


def _tilted(logits: Logits, safe: Tensor, risky: Tensor, weight: float) -> StepLaws:
    star = oracle.tilted(safe, risky, weight)
    deviations = (1.0 - weight) * logits.safe_deviation, weight * logits.risky_deviation
    ratio_deviation = ARITHMETIC + weight * math.hypot(
        logits.safe_deviation, logits.risky_deviation
    )
    return _smooth(logits, safe, star, deviations, math.hypot(*deviations), ratio_deviation)


def kl_deviation(
    star: Tensor, safe: Tensor, star_deviations: tuple[float, float], safe_deviation: float
) -> float:
    """The gradient of KL(p* || p_s) in the logits of both models, times their deviations.

    d KL = sum p* (log p*/p_s - KL) d log p* - sum (p* - p_s) d log p_s, about sqrt(2 KL) where the
    laws are near; and half the variance of log p*/p_s, the mean of what noise adds by itself, which
    is all there is where they agree.
    """
    probs, excess = star.exp(), star.exp() - safe.exp()
    ratio = oracle.log_ratio(star, safe)
    pull = probs * (ratio - (probs * ratio).sum())
    by_safe, by_risky = star_deviations
    square = (by_safe * pull - safe_deviation * excess).square() + (by_risky * pull).square()
    curvature = 0.5 * ((by_safe - safe_deviation) ** 2 + by_risky**2)
    return ARITHMETIC + square.sum().sqrt().item() + curvature


def _clipped(logits: Logits, safe: Tensor, risky: Tensor, nats: float) -> StepLaws:
    """log c is not smooth where little is free, so its range is that of caps moved by rounding."""
    either = logits.safe_deviation + logits.risky_deviation
    most = NUM_DEVIATIONS * either
    star, log_scale = oracle.clipped(safe, risky, nats)
    lowest = oracle.clipped(safe, risky, nats + most)[1] - most
    highest = oracle.clipped(safe, risky, nats - most)[1] + most
    is_all_clipped = log_scale == math.inf
    moved = math.inf if is_all_clipped else max(highest - log_scale, log_scale - lowest)
    # What is free moves with c, but only up to its cap; the cap moves with p_s.
    room = torch.where(star > -math.inf, safe + nats - star, 0.0).clamp(0.0, moved)
    star_deviation = either + room / NUM_DEVIATIONS
    divergence = oracle.largest_ratio(star, safe)
    return StepLaws(
        safe=safe,
        star=star,
        divergence=divergence,
        # Where it clips, the recorded spend itself is the largest ratio.
        divergence_deviation=either if is_all_clipped or divergence < nats else ARITHMETIC,
        spend_deviation=either,
        safe_deviation=logits.safe_deviation,
        star_deviation=star_deviation,
        star_deviations=(logits.safe_deviation, logits.risky_deviation),
        ratio_deviation=star_deviation,
        log_scales=(lowest, highest),
    )


def _alone(logits: Logits, star: Tensor) -> StepLaws:
    """The draw is p*'s own: nothing is known of how far it is from the safe model."""
    deviation = logits.risky_deviation
    return StepLaws(
        safe=star,
        star=star,
        divergence=math.inf,
        divergence_deviation=0.0,
        spend_deviation=0.0,
        safe_deviation=deviation,
        star_deviation=torch.full_like(star, deviation),
        star_deviations=(0.0, deviation),
        ratio_deviation=torch.full_like(star, ARITHMETIC),
    )
