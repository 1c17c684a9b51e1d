"""p_s and p* as a recorded step claims them, in float64, and how far rounding may move them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.certificate import KL_MARGIN, MASS_RESERVE, RESERVE_NATS, WEIGHT_ROUNDINGS
from ...kernels.spend import EPSILON, MAX_DIVERGENCE_CAP
from ..event_bound import divergence_of
from ..ledger import LedgerStep
from ..rules.rule import NextToken
from ..settings import Charge
from .rounding import ARITHMETIC, NUM_DEVIATIONS, moved

# V symbols. Distributions are (V,) float64 log-probabilities, tolerances are in nats.

SOLVER_MARGINS = 8.0
"""Margins for rounding by which a solver may stop short: it aims 2 below the budget, stops
within 4, and charges one."""

Kind = Literal["tilted", "clipped", "replayed", "alone"]
"""The form of p*: a tilted distribution, a clipped one, whatever the rule gives, or that without a
safe model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The figures that a step records, and what both models say there."""

    kind: Kind
    charge: Charge
    """The log-ratio of p* to p_s that the rule charges."""
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
    def divergence(self) -> Callable[..., Tensor]:
        """The divergence of p* from p_s that bounds the charge, as `reference` has it."""
        return reference.DIVERGENCES[divergence_of(self.charge)]

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
    """The log-ratio of p* to p_s that the step is charged: the mean, the worst or the token's."""
    star_tolerance: Tensor
    """(V,) of the logits of p*."""
    token_tolerance: float
    """The tolerance of log p* of the recorded token."""
    ratio_tolerance: Tensor
    """(V,) of log p* / p_s."""
    divergence_tolerance: float
    spend_tolerance: float
    """Nats by which the rule's spend at the recorded budget may differ."""
    slack: float = 0.0
    """Nats by which a spend may be above it: a solver's margin for its sums; or what noise adds to
    the cost of a drawn token on average, as it made that token a little likelier."""
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
    nats_by = moved(spent, claim.rows, claim.tolerances) + raised(star, ratio_by)
    nats = spent(*claim.rows).item()
    claimed = _evenly_uncertain(safe, star, nats, star_by, ratio_by, token_by, nats_by)
    return replace(claimed, slack=SOLVER_MARGINS * _solver_margin(claim, safe, star))


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
    nats_by = moved(spent, rows, [either, safe_by]) + raised(star, either)
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


def raised(star: Tensor, ratio_by: float) -> float:
    """Nats by which noise raises a divergence of two that are alike, where its slope is 0.

    It is half the variance of log-ratios; of errors of one size none has more than two symbols with
    half of the mass each.
    """
    spread = 1.0 - star.exp().square().sum().item()
    return 0.25 * ratio_by * ratio_by * spread


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
    either, is_drawn = claim.safe_tolerance + claim.risky_tolerance, claim.charge == "drawn"
    # 1. The cap: what the worst token was charged, or what the drawn one might have been.
    nats = _usable(claim.recorded.budget, len(safe)) if is_drawn else claim.recorded.spend
    risky, safe_logits = claim.risky_logits.expand(3, -1), claim.safe_logits.expand(3, -1)
    caps = torch.tensor([nats, nats + either, nats - either], dtype=torch.float64)
    scales = reference.project_max(risky, safe_logits, caps).nan_to_num(math.inf)
    log_scale, lowest, highest = scales.tolist()
    # 2. p*. Where even the cap has no mass of 1, all is clipped: p_s, normalized on the common
    #    support.
    scale = torch.tensor([log_scale], dtype=torch.float64)
    star = reference.clipped_log_probs(risky[:1], safe_logits[:1], caps[:1], scale)[0]
    star = star - star.logsumexp(-1)
    # 3. How far rounding moves it. What is free moves with c, but only up to its cap; the cap moves
    #    with p_s.
    reach = math.inf if log_scale == math.inf else max(highest - log_scale, log_scale - lowest)
    room = torch.where(star > -math.inf, safe + nats - star, 0.0).clamp(0.0, either + reach)
    claimed = StepDistributions(
        safe=safe,
        star=star,
        divergence=reference.max_divergence(star[None], claim.safe_logits[None]).item(),
        star_tolerance=either + room,
        ratio_tolerance=either + room,
        token_tolerance=ARITHMETIC + either + room[claim.recorded.token_id].item(),
        divergence_tolerance=ARITHMETIC + either,
        spend_tolerance=ARITHMETIC + either,
        log_scales=(lowest - either, highest + either),
    )
    # 4. What is charged.
    if is_drawn:
        most_scaled = 0.0 if log_scale == math.inf else highest - log_scale
        return _of_the_token(claim, claimed, nats, most_scaled)
    # Where p* clips, the recorded spend itself is the largest ratio.
    is_spend = log_scale < math.inf and claimed.divergence >= nats
    return replace(claimed, divergence_tolerance=ARITHMETIC) if is_spend else claimed


def _usable(budget: float, vocab_size: int) -> float:
    """The cap of a clipped distribution: the budget less what a solver keeps back, in nats."""
    rounding = EPSILON * (vocab_size + WEIGHT_ROUNDINGS)
    return min(budget, MAX_DIVERGENCE_CAP) - RESERVE_NATS - MASS_RESERVE * rounding


def _of_the_token(
    claim: Claim, claimed: StepDistributions, nats: float, most_scaled: float
) -> StepDistributions:
    """The step charged by the log-ratio of its token, where p* is clipped at so many nats.

    most_scaled: nats by which rounding may raise log c.
    """
    token_id, ratios = claim.recorded.token_id, unclipped_ratios(*claim.rows, nats)
    ratio, cost = ratios[token_id].item(), (claimed.star - claimed.safe)[token_id].item()
    free = max(RESERVE_NATS, claimed.star[ratios < nats].exp().sum().item())
    mass = claimed.star[token_id].exp().item()
    by = _cost_moved(claim, nats, ratio=ratio, share=mass / (free if ratio < nats else free + mass))
    # A solver's cap and mass are off by less than RESERVE_NATS together, and c makes up for both.
    by_solver = RESERVE_NATS / free
    tolerance = ARITHMETIC + by + max(RESERVE_NATS, by_solver - max(0.0, ratio - nats))
    # Who draws gets the tokens that noise made likelier: on average by half the variance of their
    # log-ratio, and by more where c jumps.
    raised_by = 0.5 * (by / NUM_DEVIATIONS) ** 2 + max(0.0, min(most_scaled, nats - cost))
    lowest, highest = claimed.log_scales or (-math.inf, math.inf)
    return replace(
        claimed,
        divergence=cost,
        divergence_tolerance=tolerance,
        spend_tolerance=tolerance,
        token_tolerance=claim.safe_tolerance + tolerance + raised_by,
        log_scales=(lowest - by_solver, highest + by_solver),
        slack=raised_by,
    )


def _cost_moved(claim: Claim, nats: float, *, ratio: float, share: float) -> float:
    """Nats by which rounding may move the log-ratio of the drawn token: one at its cap costs the
    cap whatever the logits are, any other moves with its logits and with c.

    ratio: that of the token in `unclipped_ratios`. share: what it has, or would have, of all that
    is not clipped.
    """
    if ratio == math.inf:  # all is clipped
        return sum(claim.tolerances)
    token_id = claim.recorded.token_id

    def tilt(risky: Tensor, safe: Tensor) -> Tensor:
        return reference.log_softmax(risky)[token_id] - reference.log_softmax(safe)[token_id]

    def unclipped(risky: Tensor, safe: Tensor) -> Tensor:
        return unclipped_ratios(risky, safe, nats)[token_id]

    def cost(risky: Tensor, safe: Tensor) -> Tensor:
        return unclipped(risky, safe).clamp(max=nats)

    by_all = moved(cost, claim.rows, claim.tolerances, along=unclipped)
    # Errors of all logits move c most, and may cut short what those of the token alone do below its
    # cap, less what c takes back of that.
    by_token = moved(tilt, claim.rows, claim.tolerances) - max(0.0, ratio - nats)
    taken_back = math.log1p(min(share, 1.0 - EPSILON) * math.expm1(-max(0.0, by_token)))
    return max(by_all, by_token + taken_back)


def unclipped_ratios(risky_logits: Tensor, safe_logits: Tensor, nats: float) -> Tensor:
    """log c p_r / p_s of every token, before it is clipped at `nats`; (V,) float64, differentiable.

    Off the common support it is -inf, and inf on it where all is clipped.
    """
    risky, safe = reference.log_softmax(risky_logits), reference.log_softmax(safe_logits)
    is_shared = (risky > -math.inf) & (safe > -math.inf)
    tilt = torch.where(is_shared, risky - safe, -math.inf)
    # c makes the mass of what is not clipped up to 1. It grows with what is, until no more is.
    is_clipped = torch.zeros_like(is_shared)
    while (is_free := is_shared & ~is_clipped).any():
        missing = 1.0 - (safe[is_clipped] + nats).exp().sum()
        log_c = missing.clamp(min=EPSILON).log() - risky[is_free].logsumexp(0)
        above = is_free & (tilt + log_c > nats)
        if not above.any():
            return tilt + log_c
        is_clipped = is_clipped | above
    return tilt.masked_fill(is_shared, math.inf)


def _solver_margin(claim: Claim, safe: Tensor, star: Tensor) -> float:
    """Nats that a solver adds to the divergence of a tilted distribution for rounding:
    docs/certificate.md, "The certificate". It grows with the square of the logits, so with
    1 / temperature**2."""
    weight, is_shared = claim.recorded.weight, star > -math.inf
    tilt = torch.where(is_shared, reference.log_softmax(claim.risky_logits) - safe, 0.0)
    shared = safe.masked_fill(~is_shared, -math.inf)
    rounding = EPSILON * (len(safe) + WEIGHT_ROUNDINGS)
    spread = (star.exp() * tilt.square()).sum().sqrt().item()
    drift = (torch.logsumexp(shared + weight * tilt, -1) - torch.logsumexp(shared, -1)).abs().item()
    error = rounding + EPSILON * (spread + drift)
    return KL_MARGIN * error * (1.0 + drift + weight * spread)
