"""p_s and p* as a recorded step claims them, in float64, and how far rounding may move them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.certificate import KL_MARGIN, RESERVE_NATS, WEIGHT_ROUNDINGS
from ...kernels.spend import EPSILON, MAX_DIVERGENCE_CAP
from ..ledger import LedgerStep, divergence_of
from ..rounding import ARITHMETIC, NUM_DEVIATIONS, moved
from ..rules.rule import NextToken
from ..settings import Charge

# V symbols. Distributions are (V,) float64 log-probabilities, tolerances are in nats.

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
    drift: float = 0.0
    """Nats by which the cost of a token that was drawn is above its replay on average: noise made
    it a little likelier."""
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
    nats_by = moved(spent, claim.rows, claim.tolerances) + raised(star, ratio_by)
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
    step, either = claim.recorded, claim.safe_tolerance + claim.risky_tolerance
    is_drawn = claim.charge == "drawn"
    # 1. The cap: where the worst token is charged it is what was spent, else what might be spent,
    #    less what a solver keeps back.
    nats = min(step.budget, MAX_DIVERGENCE_CAP) - RESERVE_NATS if is_drawn else step.spend
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
    # 4. What is charged. Where p* clips, the recorded spend itself is the largest ratio.
    solved_by = 0.0
    if is_drawn:
        charged = (star - safe)[step.token_id].item()
        solved_by = _solved_by(star, room)
        charged_by = solved_by + _cost_moved(claim, nats, either)
    else:
        charged = reference.max_divergence(star[None], claim.safe_logits[None]).item()
        charged_by = 0.0 if log_scale < math.inf and charged >= nats else either
    return StepDistributions(
        safe=safe,
        star=star,
        divergence=charged,
        star_tolerance=either + room,
        ratio_tolerance=either + room,
        token_tolerance=ARITHMETIC + either + room[step.token_id].item() + solved_by,
        divergence_tolerance=ARITHMETIC + charged_by,
        spend_tolerance=ARITHMETIC + (charged_by if is_drawn else either),
        log_scales=(lowest - either - solved_by, highest + either + solved_by),
        # Half the variance of its log-ratio, as of any divergence of two that are alike.
        drift=0.5 * (charged_by / NUM_DEVIATIONS) ** 2 if is_drawn else 0.0,
    )


def _solved_by(star: Tensor, room: Tensor) -> float:
    """Nats by which a solver's log c may be off: its cap and its mass are, by less than it keeps
    back, and what is free makes up for both."""
    free = star[room > ARITHMETIC].exp().sum().item()
    return RESERVE_NATS / max(free, RESERVE_NATS)


def _cost_moved(claim: Claim, nats: float, either: float) -> float:
    """Nats by which rounding may move the log-ratio of the drawn token: a token well above its cap
    costs the cap, whatever the logits are; any other moves with its logits and with c."""

    def unclipped(risky: Tensor, safe: Tensor) -> Tensor:
        return clipping(risky, safe, nats)[claim.recorded.token_id]

    ratio = unclipped(*claim.rows).item()
    if not math.isfinite(ratio):  # nothing is free: p_s on the common support
        return either
    return max(0.0, moved(unclipped, claim.rows, claim.tolerances) - max(0.0, ratio - nats))


def clipping(risky_logits: Tensor, safe_logits: Tensor, nats: float) -> Tensor:
    """log c p_r / p_s of every token before it is clipped at `nats`; (V,), differentiable.

    Off the common support it is -inf. c follows from the tokens that are clipped, the first ones by
    log-ratio: their mass is that of the cap, and c makes that of the others up to 1.
    """
    risky, safe = reference.log_softmax(risky_logits[None])[0], reference.log_softmax(safe_logits)
    is_shared = (risky > -math.inf) & (safe > -math.inf)
    places = is_shared.nonzero()[:, 0]
    tilts, order = (risky[places] - safe[places]).sort(descending=True)
    risky_mass, cap = (x[places][order] for x in (risky, safe + nats))
    # The mass of the first n tokens at their cap, and that of the others under p_r, n < N.
    clipped = torch.cat([cap.new_full((1,), -math.inf), cap.logcumsumexp(0)[:-1]])
    free = risky_mass.flip(0).logcumsumexp(0).flip(0)
    log_c = torch.log1p(-clipped.exp().clamp(max=1.0)) - free
    # The first n for which the likeliest of the others stays below its cap.
    fits = (log_c + tilts <= nats).nonzero()[:, 0]
    if len(fits) == 0:
        return torch.full_like(safe, math.inf)
    ratios = torch.full_like(safe, -math.inf)
    return ratios.index_put((places,), risky[places] - safe[places] + log_c[fits[0]])


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
