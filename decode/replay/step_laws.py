"""The laws of one step as a ledger claims them, by the oracle, and how rounding moves them."""

import math
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ...kernels.certificate import KL_MARGIN, WEIGHT_ROUNDINGS
from ...kernels.spend import BAN_GAP, EPSILON
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


def logit_deviation(logits: Tensor, dtype: torch.dtype, bears_mass: Tensor | None = None) -> float:
    """Deviation of one row of warped logits (V,) that a model of this dtype gave.

    Warped, for a temperature divides the rounding like the logit. bears_mass: (V,) bool, symbols
    whose logits count however low they are.
    """
    counts = logits >= logits.max() - CARRYING_GAP
    if bears_mass is not None:
        counts |= bears_mass & (logits >= logits.max() - BAN_GAP)
    largest = logits[counts].abs().max().item()
    return ARITHMETIC + relative_deviation(dtype) * largest


def relative_deviation(dtype: torch.dtype) -> float:
    """Deviation of a logit that a model of this dtype gave, for each nat of its size."""
    return LOGIT_DEVIATION[dtype] * torch.finfo(dtype).eps


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounding:
    """What one model's warped logits may be off by, as far as it is known before the laws are."""

    dtype: torch.dtype
    measured: float = 0.0
    """Nats that another reading of the text was off by, see `rounding`; 0 where there was none."""
    gain: float = 1.0
    """Times that its errors stand in p*."""
    added: float = 0.0
    """Nats of another reading that p* mixes in."""

    def deviation(self, logits: Tensor, bears_mass: Tensor) -> float:
        """Of one row of warped logits (V,) where such symbols count, see `logit_deviation`."""
        own = max(logit_deviation(logits, self.dtype, bears_mass), self.measured)
        return self.gain * own + self.added


Kind = Literal["kl", "max", "replayed", "alone"]
"""What p* is: a tilted law, a clipped law, whatever the rule gives, or that without a safe model
beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Logits:
    """One row of warped logits of both models."""

    safe: Tensor
    """(V,), -inf where banned."""
    risky: Tensor
    """(V,)."""
    safe_rounding: Rounding
    risky_rounding: Rounding

    def deviations(self, star: Tensor, token_id: int) -> "Deviations":
        """Where p* is `star` (V,) log-probabilities and a symbol was drawn."""
        bears_mass = star >= star.max() - CARRYING_GAP
        bears_mass[token_id] = True
        return Deviations(
            self.safe_rounding.deviation(self.safe, bears_mass),
            self.risky_rounding.deviation(self.risky, bears_mass),
        )


class Deviations(NamedTuple):
    """Nats by which a warped logit of either model may be off."""

    safe: float
    risky: float


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
    deviations: Deviations
    """Of log p_s of any symbol, and of log p_r."""
    star_deviation: Tensor
    """(V,) of log p*."""
    star_deviations: tuple[float, float]
    """Parts of it that come from the safe and from the risky model."""
    ratio_deviation: Tensor
    """(V,) of log p* / p_s."""
    solver_margin: float = 0.0
    """Nats that a solver charges for the rounding of its own sums, see `solver_margin`."""
    log_scales: tuple[float, float] | None = None
    """Least and largest log c that rounding explains; None for laws that are not clipped."""


def step_laws(kind: Kind, logits: Logits, step: LedgerStep, replayed: Tensor) -> StepLaws:
    """The laws that a recorded step claims, from both models' logits.

    replayed: (V,) log p* that the rule gives, for a rule that the oracle has no law of.
    """
    if kind == "replayed":  # rules that project nothing ban nothing of what is finite either
        safe, star = oracle.law_of(logits.safe, gap=math.inf), replayed.double()
        by = logits.deviations(star, step.token_id)
        return _smooth(safe, star, by, (0.0, by.risky), by.safe + by.risky, by.safe + by.risky)
    if kind == "alone":
        return _alone(logits, replayed.double(), step.token_id)
    safe, risky = oracle.law_of(logits.safe), oracle.law_of(logits.risky)
    if step.spend == 0.0 and step.weight == 0.0:
        by = logits.deviations(safe, step.token_id)
        return _smooth(safe, safe, by, (by.safe, 0.0), by.safe, ARITHMETIC)
    if kind == "max":
        star, log_scale = oracle.clipped(safe, risky, step.spend)
        by = logits.deviations(star, step.token_id)
        return _clipped(safe, risky, star, log_scale, step.spend, by)
    star = oracle.tilted(safe, risky, step.weight)
    return _tilted(safe, risky, star, step.weight, logits.deviations(star, step.token_id))


def _smooth(
    safe: Tensor,
    star: Tensor,
    by: Deviations,
    star_deviations: tuple[float, float],
    star_deviation: float,
    ratio_deviation: float,
) -> StepLaws:
    """Of a p* whose divergence is a KL; the same deviation for all symbols."""
    deviation = kl_deviation(star, safe, star_deviations, by.safe)
    return StepLaws(
        safe=safe,
        star=star,
        divergence=oracle.kl(star, safe),
        divergence_deviation=deviation,
        spend_deviation=deviation,
        deviations=by,
        star_deviation=torch.full_like(safe, star_deviation),
        star_deviations=star_deviations,
        ratio_deviation=torch.full_like(safe, ratio_deviation),
    )


def _tilted(safe: Tensor, risky: Tensor, star: Tensor, weight: float, by: Deviations) -> StepLaws:
    parts = (1.0 - weight) * by.safe, weight * by.risky
    laws = _smooth(safe, star, by, parts, math.hypot(*parts), ARITHMETIC)
    return replace(
        laws,
        ratio_deviation=ARITHMETIC + ratio_deviation(safe, star, weight, by),
        solver_margin=solver_margin(safe, risky, star, weight),
    )


def ratio_deviation(safe: Tensor, star: Tensor, weight: float, by: Deviations) -> Tensor:
    """(V,) of log p* / p_s of a tilted law: its gradient in the logits of both models, times their
    deviations.

    d log p*(y)/p_s(y) = weight (d r(y) - d s(y)) + sum (p_s - (1 - weight) p*) d s - weight sum p*
    d r: laws that a small weight sets apart move by what they are apart, and not by the weight.
    """
    probs, apart = star.exp(), safe.exp() - (1.0 - weight) * star.exp()
    by_safe = apart.square().sum() - 2.0 * weight * apart + weight**2
    by_risky = weight**2 * (1.0 - 2.0 * probs + probs.square().sum())
    return (by.safe * by.safe * by_safe + by.risky * by.risky * by_risky).clamp_min(0.0).sqrt()


def solver_margin(safe: Tensor, risky: Tensor, star: Tensor, weight: float) -> float:
    """Nats that a solver adds to the KL of a tilted law for its own rounding: docs/guarantee.md,
    "The certificate". It grows with the square of the logits, so with 1 / temperature**2."""
    is_shared = star > -math.inf
    tilt = torch.where(is_shared, risky - safe, 0.0)
    shared = safe.masked_fill(~is_shared, -math.inf)
    spread = (star.exp() * tilt.square()).sum().sqrt().item()
    drift = abs((torch.logsumexp(shared + weight * tilt, -1) - shared.logsumexp(-1)).item())
    error = EPSILON * (len(safe) + WEIGHT_ROUNDINGS + spread + drift)
    return KL_MARGIN * error * (1.0 + drift + weight * spread)


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
    apart = by_safe - safe_deviation
    curvature = 0.5 * (apart * apart + by_risky * by_risky)  # ** raises where this overflows
    return ARITHMETIC + square.sum().sqrt().item() + curvature


def _clipped(
    safe: Tensor, risky: Tensor, star: Tensor, log_scale: float, nats: float, by: Deviations
) -> StepLaws:
    """log c is not smooth where little is free, so its range is that of caps moved by rounding."""
    either = by.safe + by.risky
    most = NUM_DEVIATIONS * either
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
        deviations=by,
        star_deviation=star_deviation,
        star_deviations=by,
        ratio_deviation=star_deviation,
        log_scales=(lowest, highest),
    )


def _alone(logits: Logits, star: Tensor, token_id: int) -> StepLaws:
    """The draw is p*'s own: nothing is known of how far it is from the safe model."""
    by = logits.deviations(star, token_id)
    return StepLaws(
        safe=star,
        star=star,
        divergence=math.inf,
        divergence_deviation=0.0,
        spend_deviation=0.0,
        deviations=Deviations(by.risky, by.risky),
        star_deviation=torch.full_like(star, by.risky),
        star_deviations=(0.0, by.risky),
        ratio_deviation=torch.full_like(star, ARITHMETIC),
    )
