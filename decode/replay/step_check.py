"""One recorded step against a replay: its figures by `kernels.reference`, its token by `draw`.

The reference shares nothing with the solvers. What differs between the recorded run and the replay
is the rounding of the models, as a batch of another shape sums in another order; tolerances say how
far that reaches.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.certificate import KL_MARGIN, WEIGHT_ROUNDINGS
from ...kernels.spend import BAN_GAP, EPSILON
from ..ledger import LedgerStep
from ..rules.rule import NextToken
from .draw import ARITHMETIC, Draw

# V symbols. Laws are (V,) float64 log-probabilities, tolerances are in nats.

LOGIT_TOLERANCE = {
    torch.float64: 128.0,
    torch.float32: 128.0,
    torch.float16: 6.0,
    torch.bfloat16: 6.0,
}
"""The difference of a logit between two passes over a text, in units of the dtype's epsilon times
the row's largest logit.

Texts were decoded in ragged batches and replayed alone. The largest errors of log p_s were 59 units
in float32 and 4.5 in half precision, both of 6 and 8 layers with wide initial weights, whose
attention is nearly a choice and passes rounding on enlarged. The wide formats can afford the room:
128 units of float32 are 3e-4 nats of a logit of 20.
"""

MOST_OF_A_DRAW = 1.0
"""Tolerances by which rounding may move the laws of one step for its uniforms to give its token: a
uniform near an edge between two tokens gives one token in one forward and the other in the next."""

DEVIATIONS_OF_A_COUNT = 4.0
"""Rounding changes one token of a text or many, as its laws are sure or flat. Honest texts have as
many as their laws lead one to expect, within so many roots of that number; more were chosen."""

DEVIATIONS_OF_A_GAIN = 3.0
"""Rounding takes either token at an edge as often as the other, so what such tokens gain in
log p_r / p_s has mean 0, and two draws from a law differ by the root of 2 of its deviation. Nobody
who draws exceeds this many deviations of the sum; who chooses only gains does."""

TRUNCATION_NEEDS = 0.1
"""Tolerances that count for a step whose support rounding may have decided: it is at an edge."""

CARRYING_GAP = 64.0
"""Nats below the largest beyond which a logit bears no mass that matters: masks are far below."""

SOLVER_FRACTION = 1e-5
SOLVER_NATS = 1e-7
"""A solver may miss a budget that binds by max(fraction * budget, nats), see docs/guarantee.md."""

SOLVER_MARGINS = 8.0
"""Margins for rounding by which a solver may stop short: it aims 2 below the budget, stops
within 4, and charges one."""

LEAST_WEIGHT_NATS = 700.0
"""log c from which the weight of a clipped law, 1 / c, is 0 or too small to be a whole float64."""

Kind = Literal["kl", "max", "replayed", "alone"]
"""The form of p*: a tilted law, a clipped law, whatever the rule gives, or that without a safe
model beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """The figures that a step records, and what both models say there."""

    kind: Kind
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """The outcome of one step; figures in nats."""

    failures: list[str]
    """A phrase each."""
    rounding: float
    """Tolerances by which the laws must move for the uniforms to give the token; 0 where they give
    it exactly."""
    chance: float
    """How likely rounding is to give another token than the uniforms do exactly."""
    gain: float
    """Nats of log p_r / p_s that the token has more than the one that they give exactly."""
    spread: float
    """Standard deviation of log p_r / p_s under p*."""
    divergence: float
    """KL, or the largest log-ratio, of p* from p_s at the recorded weight or spend."""
    tolerance: float
    """Nats by which rounding may move it."""
    slack: float
    """Nats by which the spend may be above it for the solver's sake."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepLaws:
    """p_s and p* that a recorded step claims, and how far rounding may move them."""

    safe: Tensor
    star: Tensor
    divergence: float
    """KL, or the largest log-ratio, of p* from p_s."""
    star_tolerance: Tensor
    """(V,) of log p*."""
    ratio_tolerance: Tensor
    """(V,) of log p* / p_s."""
    divergence_tolerance: float
    spend_tolerance: float
    """Nats by which the rule's spend at the recorded budget may differ."""
    solver_margin: float = 0.0
    """Nats that a solver charges for the rounding of its sums."""
    log_scales: tuple[float, float] | None = None
    """Least and largest log c of a clipped law that rounding explains."""


def logit_tolerance(logits: Tensor, dtype: torch.dtype, matters: Tensor | None = None) -> float:
    """Nats by which the logits of one row (V,), warped, may differ between two readings.

    Warped, as a temperature divides the rounding like the logit. dtype: of the model. matters: (V,)
    bool, symbols whose logits count though they are far below the largest.
    """
    counts = logits >= logits.max() - CARRYING_GAP
    if matters is not None:
        counts |= matters & (logits >= logits.max() - BAN_GAP)
    largest = logits.abs().masked_fill(~counts, 0.0).max().item()
    return ARITHMETIC + LOGIT_TOLERANCE[dtype] * torch.finfo(dtype).eps * largest


def difference(left: float, right: float) -> float:
    """0 for the same infinity."""
    return 0.0 if left == right else abs(left - right)


def check_step(claim: Claim) -> StepReport:
    """Every figure of the step, and whether its uniforms give its token."""
    # 1. p_s and p* in float64, apart from the solvers, and the figures that follow from them.
    laws, recorded = _laws(claim), claim.recorded
    failures = [
        f"{name} differs by {error:.3g} nats"
        for name, (error, tolerance) in _figures(claim, laws).items()
        if not error <= tolerance
    ]
    # 2. log p_r / p_s: who chooses tokens within rounding chooses by it.
    ratios = reference.log_softmax(claim.risky_logits) - laws.safe
    ratios = ratios.nan_to_num(0.0, 0.0, 0.0)  # where one law has no mass, or nothing is looked at
    probs = laws.star.exp()
    spread = (probs * (ratios - (probs * ratios).sum()).square()).sum().sqrt().item()
    # 3. The token, drawn again by the recorded seed.
    rounding, chance, exact = _redrawn(claim, laws)
    if not rounding <= MOST_OF_A_DRAW:
        failures.append("the seed gives another token")
    return StepReport(
        failures=failures,
        rounding=rounding,
        chance=chance,
        gain=(ratios[recorded.token_id] - ratios[exact]).item() if rounding else 0.0,
        spread=spread,
        divergence=laws.divergence,
        tolerance=laws.divergence_tolerance,
        slack=_solver_slack(recorded, laws),
    )


def _laws(claim: Claim) -> StepLaws:
    step, safe_by, risky_by = claim.recorded, claim.safe_tolerance, claim.risky_tolerance
    if claim.kind in ("alone", "replayed"):
        # Rules that project nothing ban nothing of what is finite either.
        star = claim.drawn.log_probs()[0].cpu().double()
        if claim.kind == "alone":  # the draw is p*'s alone, nothing is known of the safe model
            return _even_laws(star, star, math.inf, risky_by, 0.0, 0.0)
        safe = reference.log_softmax(claim.safe_logits, ban_gap=math.inf)
        nats = reference.kl_divergence(star[None], claim.safe_logits[None], ban_gap=math.inf).item()
        either = safe_by + (risky_by if claim.reads_risky else 0.0)
        return _even_laws(safe, star, nats, either, either, moved(nats, either))
    safe = reference.log_softmax(claim.safe_logits)
    if step.spend == 0.0 and step.weight == 0.0:
        return _even_laws(safe, safe, 0.0, safe_by, 0.0, 0.0)
    if claim.kind == "max":
        return _clipped_laws(claim, safe)
    rows = claim.risky_logits[None], claim.safe_logits[None]
    weight = torch.tensor([step.weight], dtype=torch.float64)
    star = reference.tilted_log_probs(*rows, weight)[0]
    nats = reference.kl_divergence(star[None], claim.safe_logits[None]).item()
    # p* / p_s moves by the weight, and where a small weight sets the laws apart by what they are
    # apart: the normalization is a mean under one law less that under the other.
    apart = 0.5 * (star.exp() - safe.exp()).abs().sum().item()
    ratio_by = math.hypot(safe_by, risky_by) * min(1.0, step.weight + apart)
    star_by = math.hypot((1.0 - step.weight) * safe_by, step.weight * risky_by)
    laws = _even_laws(safe, star, nats, star_by, ratio_by, moved(nats, ratio_by))
    return replace(laws, solver_margin=_solver_margin(safe, star, claim.risky_logits, step.weight))


def _even_laws(
    safe: Tensor, star: Tensor, nats: float, star_by: float, ratio_by: float, nats_by: float
) -> StepLaws:
    """With one tolerance for all symbols."""
    return StepLaws(
        safe=safe,
        star=star,
        divergence=nats,
        star_tolerance=torch.full_like(star, star_by),
        ratio_tolerance=torch.full_like(star, ratio_by),
        divergence_tolerance=ARITHMETIC + nats_by,
        spend_tolerance=ARITHMETIC + nats_by,
    )


def moved(nats: float, by: float) -> float:
    """Nats by which a KL may move where log-ratios move by `by`.

    sqrt(2 KL) is a distance of two laws in units of log-ratios, so it moves by no more; it moves by
    half of that at most, as a mean of many errors: in honest ledgers by a fifth.
    """
    distance = math.sqrt(2.0 * nats)
    return 0.5 * by * distance + 0.125 * by * by if math.isfinite(nats) else 0.0


def _clipped_laws(claim: Claim, safe: Tensor) -> StepLaws:
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
    return StepLaws(
        safe=safe,
        star=star,
        divergence=divergence,
        star_tolerance=either + room,
        ratio_tolerance=either + room,
        divergence_tolerance=ARITHMETIC + (0.0 if is_spend else either),
        spend_tolerance=ARITHMETIC + either,
        log_scales=(lowest - either, highest + either),
    )


def _solver_margin(safe: Tensor, star: Tensor, risky_logits: Tensor, weight: float) -> float:
    """Nats that a solver adds to the KL of a tilted law for rounding: docs/guarantee.md,
    "The certificate". It grows with the square of the logits, so with 1 / temperature**2."""
    is_shared = star > -math.inf
    tilt = torch.where(is_shared, reference.log_softmax(risky_logits) - safe, 0.0)
    shared = safe.masked_fill(~is_shared, -math.inf)
    spread = (star.exp() * tilt.square()).sum().sqrt().item()
    drift = abs((torch.logsumexp(shared + weight * tilt, -1) - shared.logsumexp(-1)).item())
    error = EPSILON * (len(safe) + WEIGHT_ROUNDINGS + spread + drift)
    return KL_MARGIN * error * (1.0 + drift + weight * spread)


def _solver_slack(step: LedgerStep, laws: StepLaws) -> float:
    """Nats by which a solver may miss a budget, and a spend be above its divergence."""
    least = max(SOLVER_FRACTION * step.spend, SOLVER_NATS) if math.isfinite(step.spend) else 0.0
    return least + SOLVER_MARGINS * laws.solver_margin


def _figures(claim: Claim, laws: StepLaws) -> dict[str, tuple[float, float]]:
    """Each figure's error, and the error that is allowed, by name."""
    step, slack = claim.recorded, _solver_slack(claim.recorded, laws)
    by_nats = laws.divergence_tolerance
    # Only a spend above its divergence has the solver to explain it.
    above = slack if step.spend > laws.divergence else 0.0
    by_rule = difference(claim.drawn.spend[0].item(), step.spend)
    if by_rule > laws.spend_tolerance + slack and _is_at_threshold(claim):
        by_rule = 0.0
    star, safe = laws.star[step.token_id].item(), laws.safe[step.token_id].item()
    # Nothing is recorded where the rule did not read the safe model.
    recorded_safe = safe if step.safe_log_prob is None else step.safe_log_prob
    figures = {
        "spend": (difference(laws.divergence, step.spend), by_nats + above),
        "spend by the rule": (by_rule, laws.spend_tolerance + slack),
        "budget left": (_left_of_budget(claim), max(slack, SOLVER_FRACTION * step.budget)),
        "weight": (_weight_error(claim, laws), 0.0),
        "log_prob": (
            difference(star, step.log_prob),
            ARITHMETIC + laws.star_tolerance[step.token_id].item(),
        ),
        "safe_log_prob": (difference(safe, recorded_safe), claim.safe_tolerance),
    }
    if step.kl_risky_safe is None and step.kl_star_risky is None:
        return figures
    either = claim.safe_tolerance + claim.risky_tolerance
    for name, nats in divergences(laws.star, claim.risky_logits, claim.safe_logits).items():
        if (asked := getattr(step, name)) is not None:
            figures[name] = (difference(nats, asked), ARITHMETIC + moved(nats, either))
    return figures


def _left_of_budget(claim: Claim) -> float:
    """Nats that a projection left though its weight says that the budget binds: a law nearer to the
    risky model was feasible. No rounding explains it, as spends are the solver's own."""
    step = claim.recorded
    is_binding = claim.kind in ("kl", "max") and 0.0 < step.weight < 1.0
    return max(0.0, step.budget - step.spend) if is_binding else 0.0


def _is_at_threshold(claim: Claim) -> bool:
    """Whether rounding decides if the budget pays for leaving the safe model's support, or for the
    whole risky model where a rule takes that or nothing."""
    step, rows = claim.recorded, (claim.risky_logits[None], claim.safe_logits[None])
    floor = reference.support_floor(*rows).item()
    reach = claim.safe_tolerance + max(SOLVER_FRACTION * step.budget, SOLVER_NATS)
    if floor > ARITHMETIC and abs(floor - step.budget) <= reach:
        return True
    whole = reference.kl_divergence(reference.log_softmax(rows[0]), rows[1]).item()
    reach = moved(whole, math.hypot(claim.safe_tolerance, claim.risky_tolerance))
    takes_all_or_nothing = {step.weight, claim.drawn.weight[0].item()} == {0.0, 1.0}
    return takes_all_or_nothing and abs(whole - step.budget) <= reach


def _weight_error(claim: Claim, laws: StepLaws) -> float:
    """The error of log c of a clipped law, of 1 where nothing is projected; the weight of a tilted
    law shows in its divergence alone."""
    weight = claim.recorded.weight
    if claim.kind in ("replayed", "alone"):
        return abs(weight - 1.0)
    if laws.log_scales is None:
        return 0.0
    lowest, highest = laws.log_scales
    if weight <= math.exp(-LEAST_WEIGHT_NATS):
        return max(0.0, LEAST_WEIGHT_NATS - highest)
    return max(0.0, lowest + math.log(weight), -math.log(weight) - highest)


def divergences(star: Tensor, risky_logits: Tensor, safe_logits: Tensor) -> dict[str, float]:
    """Nats by the fields of `LedgerStep`; infinite where a law has mass that the other lacks.

    star: (V,) float64 log p*. risky_logits, safe_logits: (V,) warped.
    """
    safe, risky = safe_logits[None], risky_logits[None]
    return {
        "kl_risky_safe": reference.kl_divergence(reference.log_softmax(risky), safe).item(),
        "kl_star_risky": reference.kl_divergence(star[None], risky).item(),
    }


def _redrawn(claim: Claim, laws: StepLaws) -> tuple[float, float, int]:
    """Tolerances by which the laws must move for the uniforms to give the recorded token, how
    likely rounding is to give another one, and the token that they give as they are."""
    step = claim.recorded
    if claim.uniform is None:
        return max(0.0, _behind_the_likeliest(claim, laws)), 1.0, int(laws.star.argmax())
    draw = Draw(
        uniform=claim.uniform,
        safe=laws.safe,
        star=laws.star,
        safe_tolerance=claim.risky_tolerance if claim.kind == "alone" else claim.safe_tolerance,
        star_tolerance=laws.star_tolerance,
        ratio_tolerance=laws.ratio_tolerance,
    )
    needed = torch.stack([draw.needed(accepted=False), draw.needed(accepted=True)])
    is_draft = step.accepted or claim.kind == "alone"  # alone p* is its own draft
    exact = int(needed.min(0).values.argmin())
    return needed[int(is_draft), step.token_id].item(), draw.chance(), exact


def _behind_the_likeliest(claim: Claim, laws: StepLaws) -> float:
    """Tolerances by which greedy decoding chose another token; accepted says that it is the safe
    model's likeliest one too."""
    step, star, safe = claim.recorded, laws.star, laws.safe
    others = torch.arange(len(safe)) != step.token_id
    behind = (star.max() - star[step.token_id]) / (laws.star_tolerance[step.token_id] + ARITHMETIC)
    if step.safe_log_prob is None:
        return behind.item() / math.sqrt(2.0)
    lead = (safe[step.token_id] - safe[others].max()) / claim.safe_tolerance
    missing = -lead if step.accepted else lead
    # Both logits of a difference move.
    return max(behind.item(), missing.item()) / math.sqrt(2.0)
