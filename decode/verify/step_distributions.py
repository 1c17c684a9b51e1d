"""p_s and p* as a recorded step claims them, in float64, and how far rounding may move them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.certificate import (
    EXPONENT_ROUNDINGS,
    KL_MARGIN,
    LEAST_SHARE,
    RENYI_MARGIN,
    TILT_ROUNDINGS,
    WEIGHT_ROUNDINGS,
)
from ...kernels.spend import EPSILON
from ..ledger import LedgerStep
from ..rounding import ARITHMETIC, moved
from ..rules.rule import NextToken

# V symbols. Distributions are (V,) float64 log-probabilities, tolerances are in nats.

Kind = Literal["tilted", "clipped", "replayed", "alone"]
"""The form of p*: a tilted distribution, a clipped one, whatever the rule gives, or that without a
safe model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The figures that a step records, and what both models say there."""

    kind: Kind
    divergence: Callable[..., Tensor]
    """The divergence of p* from p_s that the rule names, one of `reference.DIVERGENCES`."""
    order: float | None
    """The order of that divergence, where it is a Rényi divergence."""
    recorded: LedgerStep
    safe_logits: Tensor
    """(V,) warped, on the CPU."""
    risky_logits: Tensor
    """(V,), the same; of no account where nothing could be spent."""
    reads_risky: bool
    """Whether the rule does."""
    safe_tolerance: float
    """Nats of a warped logit; the same for the other."""
    risky_tolerance: float
    drawn: NextToken
    """The outcome of the rule for these logits at the recorded budget."""
    uniform: tuple[float, float, float] | None
    """None for greedy decoding."""

    @property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Both models' logits, the risky one's first as in `reference`."""
        return self.risky_logits, self.safe_logits

    @property
    def tolerances(self) -> tuple[float, float]:
        return self.risky_tolerance, self.safe_tolerance


@dataclass(frozen=True, kw_only=True, slots=True)
class StepDistributions:
    """p_s and p* that a recorded step claims, and how far rounding may move them."""

    safe: Tensor
    star: Tensor
    divergence: float
    """KL, or the largest log-ratio, of p* from p_s."""
    star_tolerance: Tensor
    """(V,) of the logits of p*."""
    token_tolerance: float
    """The tolerance of log p* of the recorded token."""
    ratio_tolerance: Tensor
    """(V,) of log p* / p_s."""
    divergence_tolerance: float
    spend_tolerance: float
    """Nats by which the rule's spend at the recorded budget may differ."""
    solver_margin: float = 0.0
    """Nats that a solver charges for the rounding of its sums."""
    log_scales: tuple[float, float] | None = None
    """Least and largest log c of a clipped distribution that rounding explains."""


def distributions_of(claim: Claim) -> StepDistributions:
    step, safe_by, risky_by = claim.recorded, claim.safe_tolerance, claim.risky_tolerance
    if claim.kind in ("alone", "replayed"):
        return _replayed(claim)
    safe = reference.log_softmax(claim.safe_logits)
    if step.spend == 0.0 and step.weight == 0.0:
        token_by = token_moved(step, reference.log_softmax, [claim.safe_logits], [safe_by])
        return _evenly_uncertain(safe, safe, 0.0, safe_by, 0.0, token_by, 0.0)
    if claim.kind == "clipped":
        return _clipped(claim, safe)
    weight = torch.tensor([step.weight], dtype=torch.float64)

    def tilted(risky: Tensor, safe: Tensor) -> Tensor:
        return reference.tilted_log_probs(risky[None], safe[None], weight)[0]

    def spent(risky: Tensor, safe: Tensor) -> Tensor:
        return claim.divergence(tilted(risky, safe)[None], safe[None])[0]

    star = tilted(*claim.rows)
    # p* / p_s moves by the weight, and where a small weight sets the distributions apart by what
    # they are apart: the normalization is a mean under one less that under the other.
    apart = 0.5 * (star.exp() - safe.exp()).abs().sum().item()
    ratio_by = math.hypot(safe_by, risky_by) * min(1.0, step.weight + apart)
    star_by = math.hypot((1.0 - step.weight) * safe_by, step.weight * risky_by)
    token_by = token_moved(step, tilted, claim.rows, claim.tolerances)
    nats_by = moved(spent, claim.rows, claim.tolerances) + raised(star, ratio_by, claim.order)
    nats = spent(*claim.rows).item()
    claimed = _evenly_uncertain(safe, star, nats, star_by, ratio_by, token_by, nats_by)
    return replace(claimed, solver_margin=_solver_margin(claim, safe, star))


def _replayed(claim: Claim) -> StepDistributions:
    """The distribution of rules that project nothing: they ban nothing of what is finite either."""
    safe_by, risky_by, step = claim.safe_tolerance, claim.risky_tolerance, claim.recorded

    def spent(star: Tensor, safe: Tensor) -> Tensor:
        return claim.divergence(unbanned(star)[None], safe[None], ban_gap=math.inf)[0]

    # p* is what the rule's figures are when they sum to one, as a draw would have it.
    star = unbanned(claim.drawn.log_probs()[0].cpu())
    if claim.kind == "alone":  # the draw is p*'s alone, nothing is known of the safe model
        token_by = token_moved(step, unbanned, [star], [risky_by])
        return _evenly_uncertain(star, star, math.inf, risky_by, 0.0, token_by, 0.0)
    rows = star, claim.safe_logits
    either = safe_by + (risky_by if claim.reads_risky else 0.0)
    token_by = token_moved(step, unbanned, rows[:1], [either])
    nats_by = moved(spent, rows, [either, safe_by]) + raised(star, either, claim.order)
    safe = unbanned(claim.safe_logits)
    return _evenly_uncertain(safe, star, spent(*rows).item(), either, either, token_by, nats_by)


def unbanned(logits: Tensor) -> Tensor:
    return reference.log_softmax(logits, ban_gap=math.inf)


def token_moved(
    step: LedgerStep,
    log_probs: Callable[..., Tensor],
    rows: Sequence[Tensor],
    tolerances: Sequence[float],
) -> float:
    """Nats by which rounding may move the log-probability of the recorded token."""
    return moved(lambda *moving: log_probs(*moving)[step.token_id], rows, tolerances)


def raised(star: Tensor, ratio_by: float, order: float | None = None) -> float:
    """Nats by which noise raises a divergence of two that are alike, where its slope is 0.

    It is half the variance of log-ratios, times the order; of errors of one size none has more than
    two symbols with half of the mass each.
    """
    spread = 1.0 - star.exp().square().sum().item()
    return 0.25 * (order or 1.0) * ratio_by * ratio_by * spread


def _evenly_uncertain(
    safe: Tensor,
    star: Tensor,
    nats: float,
    star_by: float,
    ratio_by: float,
    token_by: float,
    nats_by: float,
) -> StepDistributions:
    """With one tolerance for the logits of all symbols."""
    return StepDistributions(
        safe=safe,
        star=star,
        divergence=nats,
        star_tolerance=torch.full_like(star, star_by),
        ratio_tolerance=torch.full_like(star, ratio_by),
        token_tolerance=ARITHMETIC + token_by,
        divergence_tolerance=ARITHMETIC + nats_by,
        spend_tolerance=ARITHMETIC + nats_by,
    )


def _clipped(claim: Claim, safe: Tensor) -> StepDistributions:
    """log c jumps where little is free, so its range is that of caps moved by rounding."""
    either, nats = claim.safe_tolerance + claim.risky_tolerance, claim.recorded.spend
    risky, safe_logits = claim.risky_logits.expand(3, -1), claim.safe_logits.expand(3, -1)
    caps = torch.tensor([nats, nats + either, nats - either], dtype=torch.float64)
    scales = reference.project_max(risky, safe_logits, caps).nan_to_num(math.inf)
    log_scale, lowest, highest = scales.tolist()
    # Where even the cap has no mass of 1, all is clipped: p_s, normalized on the common support.
    scale = torch.tensor([log_scale], dtype=torch.float64)
    star = reference.clipped_log_probs(risky[:1], safe_logits[:1], caps[:1], scale)[0]
    star = star - star.logsumexp(-1)
    reach = math.inf if log_scale == math.inf else max(highest - log_scale, log_scale - lowest)
    # What is free moves with c, but only up to its cap; the cap moves with p_s.
    room = torch.where(star > -math.inf, safe + nats - star, 0.0).clamp(0.0, either + reach)
    divergence = reference.max_divergence(star[None], claim.safe_logits[None]).item()
    # Where it clips, the recorded spend itself is the largest ratio.
    is_spend = log_scale < math.inf and divergence >= nats
    return StepDistributions(
        safe=safe,
        star=star,
        divergence=divergence,
        star_tolerance=either + room,
        ratio_tolerance=either + room,
        token_tolerance=ARITHMETIC + either + room[claim.recorded.token_id].item(),
        divergence_tolerance=ARITHMETIC + (0.0 if is_spend else either),
        spend_tolerance=ARITHMETIC + either,
        log_scales=(lowest - either, highest + either),
    )


def _solver_margin(claim: Claim, safe: Tensor, star: Tensor) -> float:
    """Nats that a solver adds to the divergence of a tilted distribution for rounding:
    docs/certificate.md, "The certificate". It grows with the square of the logits, so with
    1 / temperature**2."""
    weight, is_shared = claim.recorded.weight, star > -math.inf
    tilt = torch.where(is_shared, reference.log_softmax(claim.risky_logits) - safe, 0.0)
    shared = safe.masked_fill(~is_shared, -math.inf)
    rounding = EPSILON * (len(safe) + WEIGHT_ROUNDINGS)

    def log_partition(times: float) -> float:
        """log of the partition sum of the tilt taken so many times."""
        return torch.logsumexp(shared + times * tilt, -1).item()

    if claim.order is None:
        spread = (star.exp() * tilt.square()).sum().sqrt().item()
        drift = abs(log_partition(weight) - log_partition(0.0))
        error = rounding + EPSILON * (spread + drift)
        return KL_MARGIN * error * (1.0 + drift + weight * spread)
    reach = tilt.abs().max().item()

    def error_of_log(times: float) -> float:
        exponents = abs(log_partition(times)) + (1.0 + times) * reach + LEAST_SHARE
        return rounding + EPSILON * (EXPONENT_ROUNDINGS + TILT_ROUNDINGS * times) * exponents

    of_weights = error_of_log(claim.order * weight) + claim.order * error_of_log(weight)
    return RENYI_MARGIN * (of_weights / (claim.order - 1.0) + error_of_log(0.0))
