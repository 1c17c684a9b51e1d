"""One recorded step against a replay: its figures by `kernels.reference`, its token by `draw`.

The reference shares nothing with the solvers. What differs between the recorded run and the replay
is the rounding of the models, see `rounding`.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.spend import BAN_GAP
from ..ledger import LedgerStep
from ..rules.rule import token_spend
from .draw import Draw
from .rounding import ARITHMETIC, NUM_DEVIATIONS, moved
from .step_distributions import (
    Claim,
    StepDistributions,
    distributions_of,
    raised,
    token_moved,
    unbanned,
)

# V symbols. Distributions are (V,) float64 log-probabilities, tolerances are in nats.

MOST_OF_A_DRAW = 1.0
"""Tolerances by which rounding may move the distributions of one step for its uniforms to give its
token: a uniform near an edge between two tokens gives one token in one forward and the other in the
next."""

TRUNCATION_NEEDS = 0.1
"""Tolerances that count for a step whose support rounding may have decided: it is at an edge."""

SOLVER_FRACTION = 1e-5
SOLVER_NATS = 1e-7
"""A solver may miss a budget that binds by max(fraction * budget, nats): docs/certificate.md."""

LEAST_WEIGHT_NATS = 700.0
"""log c from which the weight of a clipped distribution, 1 / c, is 0 or too small to be a whole
float64."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """The outcome of one step; figures in nats."""

    failures: list[str]
    """A phrase each."""
    rounding: float
    """Tolerances by which the distributions must move for the uniforms to give the token; 0 where
    they give it exactly."""
    chance: float
    """The chance that rounding gives another token than the uniforms do exactly."""
    gain: float
    """Nats of log p_r / p_s that the token has more than the one that they give exactly."""
    spread: float
    """Standard deviation of log p_r / p_s under p*."""
    divergence: float
    """The log-ratio of p* to p_s that the step is charged, at the recorded weight or spend."""
    tolerance: float
    """Nats by which rounding may move it."""
    slack: float
    """Nats by which the spend may be above it for the solver's sake."""
    steepness: tuple[float, float]
    """The error of the odds that log p_s gives the token, and how far they move with the logarithm
    of the temperature, both in standard deviations of rounding."""


def difference(left: float, right: float) -> float:
    """0 for the same infinity."""
    return 0.0 if left == right else abs(left - right)


def check_step(claim: Claim) -> StepReport:
    """Every figure of the step, and whether its uniforms give its token."""
    # 1. p_s and p* in float64, apart from the solvers, and the figures that follow from them.
    claimed, recorded = distributions_of(claim), claim.recorded
    failures = [
        f"{name} differs by {error:.3g} nats"
        for name, (error, tolerance) in _figures(claim, claimed).items()
        if not error <= tolerance
    ]
    # 2. log p_r / p_s: who chooses tokens within rounding chooses by it.
    ratios = reference.log_softmax(claim.risky_logits) - claimed.safe
    ratios = ratios.nan_to_num(0.0, 0.0, 0.0)  # where one has no mass, or nothing is looked at
    probs = claimed.star.exp()
    spread = (probs * (ratios - (probs * ratios).sum()).square()).sum().sqrt().item()
    # 3. The token, drawn again by the recorded seed.
    rounding, chance, exact = _redrawn(claim, claimed)
    if not rounding <= MOST_OF_A_DRAW:
        failures.append("the seed gives another token")
    return StepReport(
        failures=failures,
        rounding=rounding,
        chance=chance,
        gain=(ratios[recorded.token_id] - ratios[exact]).item() if rounding else 0.0,
        spread=spread,
        divergence=claimed.divergence,
        tolerance=claimed.divergence_tolerance,
        slack=_solver_slack(recorded, claimed),
        steepness=_steepness(claim, claimed),
    )


def _steepness(claim: Claim, claimed: StepDistributions) -> tuple[float, float]:
    recorded, token_id, probs = (
        claim.recorded.safe_log_prob,
        claim.recorded.token_id,
        claimed.safe.exp(),
    )
    replayed = claimed.safe[token_id].item()
    if recorded is None or not -math.inf < max(recorded, replayed) < 0.0:
        return 0.0, 0.0
    # The logarithm of the odds errs by what the token's logit does, less the mean of the others,
    # however nearly certain it is.
    probs[token_id] = 0.0
    others = probs / probs.sum()
    alone = math.hypot(1.0, others.norm().item())
    deviation = claim.safe_tolerance * alone / NUM_DEVIATIONS - ARITHMETIC / math.expm1(replayed)
    slope = replayed - (others * claimed.safe.clamp_min(-BAN_GAP)).sum().item()
    return (_log_odds(recorded) - _log_odds(replayed)) / deviation, slope / deviation


def _log_odds(log_prob: float) -> float:
    return log_prob - math.log(-math.expm1(log_prob))


def _solver_slack(step: LedgerStep, claimed: StepDistributions) -> float:
    """Nats by which a solver may miss a budget, and a spend be above its divergence."""
    least = max(SOLVER_FRACTION * step.spend, SOLVER_NATS) if math.isfinite(step.spend) else 0.0
    return least + claimed.slack


def _figures(claim: Claim, claimed: StepDistributions) -> dict[str, tuple[float, float]]:
    """Each figure's error, and the error that is allowed, by name."""
    step, slack = claim.recorded, _solver_slack(claim.recorded, claimed)
    by_nats = claimed.divergence_tolerance
    # Only a spend above its divergence has the solver to explain it.
    above = slack if step.spend > claimed.divergence else 0.0
    token_id = torch.tensor([step.token_id], device=claim.drawn.spend.device)
    by_rule = difference(token_spend(claim.drawn, token_id)[0].item(), step.spend)
    if by_rule > claimed.spend_tolerance + slack and _is_at_threshold(claim):
        by_rule = 0.0
    star, safe = claimed.star[step.token_id].item(), claimed.safe[step.token_id].item()
    # Nothing is recorded where the rule did not read the safe model.
    recorded_safe = safe if step.safe_log_prob is None else step.safe_log_prob
    safe_log_probs = reference.log_softmax if claim.kind in ("tilted", "clipped") else unbanned
    safe_by = token_moved(step, safe_log_probs, [claim.safe_logits], [claim.safe_tolerance])
    figures = {
        "spend": (difference(claimed.divergence, step.spend), by_nats + above),
        "spend by the rule": (by_rule, claimed.spend_tolerance + slack),
        "budget left": (_left_of_budget(claim), max(slack, SOLVER_FRACTION * step.budget)),
        "weight": (_weight_error(claim, claimed), 0.0),
        "log_prob": (difference(star, step.log_prob), claimed.token_tolerance),
        "safe_log_prob": (difference(safe, recorded_safe), max(ARITHMETIC, safe_by)),
    }
    if claim.charge == "drawn" and step.safe_log_prob is not None:
        # The cost follows from the two figures next to it, whatever the models say.
        cost = step.log_prob - step.safe_log_prob
        figures["cost of the token"] = (difference(cost, step.spend), SOLVER_NATS)
    if step.kl_risky_safe is None and step.kl_star_risky is None:
        return figures
    return figures | _compared(claim, claimed)


def _compared(claim: Claim, claimed: StepDistributions) -> dict[str, tuple[float, float]]:
    """The errors, and those allowed, of the divergences that were asked for, by name."""
    star_by, (risky_by, safe_by) = claimed.star_tolerance.max().item(), claim.tolerances
    rows = {
        "kl_risky_safe": (claim.rows, (risky_by, safe_by)),
        "kl_star_risky": ((claimed.star, claim.risky_logits), (star_by, risky_by)),
    }
    compared = {}
    for name, nats in divergences(claimed.star, *claim.rows).items():
        (left, right), tolerances = rows[name]
        by = moved(_kl, (left, right), tolerances)
        by += raised(reference.log_softmax(left), math.hypot(*tolerances))
        if (recorded := getattr(claim.recorded, name)) is not None:
            compared[name] = (difference(nats, recorded), ARITHMETIC + by)
    return compared


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return reference.kl_divergence(reference.log_softmax(left)[None], right[None])[0]


def _left_of_budget(claim: Claim) -> float:
    """Nats that a projection left though its weight says that the budget binds: a distribution
    nearer to the risky model was feasible. No rounding explains it, as spends are the solver's own.
    """
    step = claim.recorded
    is_binding = claim.kind in ("tilted", "clipped") and 0.0 < step.weight < 1.0
    # A drawn token may cost less than p* might have spent, which follows from the budget itself.
    return max(0.0, step.budget - step.spend) if is_binding and claim.charge != "drawn" else 0.0


def _is_at_threshold(claim: Claim) -> bool:
    """Whether rounding decides if the budget pays for leaving the safe model's support, or for the
    whole risky model where a rule takes that or nothing."""
    step, rows = claim.recorded, (claim.risky_logits[None], claim.safe_logits[None])
    floor = reference.support_floor(*rows).item()
    reach = claim.safe_tolerance + max(SOLVER_FRACTION * step.budget, SOLVER_NATS)
    if floor > ARITHMETIC and abs(floor - step.budget) <= reach:
        return True
    whole = _kl(*claim.rows).item()
    reach = moved(_kl, claim.rows, claim.tolerances)
    takes_all_or_nothing = {step.weight, claim.drawn.weight[0].item()} == {0.0, 1.0}
    return takes_all_or_nothing and abs(whole - step.budget) <= reach


def _weight_error(claim: Claim, claimed: StepDistributions) -> float:
    """The error of log c of a clipped distribution, of 1 where nothing is projected; the weight of
    a tilted distribution shows in its divergence alone."""
    weight = claim.recorded.weight
    if claim.kind in ("replayed", "alone"):
        return abs(weight - 1.0)
    if claimed.log_scales is None:
        return 0.0
    lowest, highest = claimed.log_scales
    if weight <= math.exp(-LEAST_WEIGHT_NATS):
        return max(0.0, LEAST_WEIGHT_NATS - highest)
    return max(0.0, lowest + math.log(weight), -math.log(weight) - highest)


def divergences(star: Tensor, risky_logits: Tensor, safe_logits: Tensor) -> dict[str, float]:
    """Nats by the fields of `LedgerStep`; infinite where one has mass that the other lacks.

    star: (V,) float64 log p*. risky_logits, safe_logits: (V,) warped.
    """
    safe, risky = safe_logits[None], risky_logits[None]
    return {
        "kl_risky_safe": reference.kl_divergence(reference.log_softmax(risky), safe).item(),
        "kl_star_risky": reference.kl_divergence(star[None], risky).item(),
    }


def _redrawn(claim: Claim, claimed: StepDistributions) -> tuple[float, float, int]:
    """Tolerances by which the distributions must move for the uniforms to give the recorded token,
    how likely rounding is to give another one, and the token that they give as they are."""
    step = claim.recorded
    if claim.uniform is None:
        return max(0.0, _behind_the_likeliest(claim, claimed)), 1.0, int(claimed.star.argmax())
    draw = Draw(
        uniform=claim.uniform,
        safe=claimed.safe,
        star=claimed.star,
        safe_tolerance=claim.risky_tolerance if claim.kind == "alone" else claim.safe_tolerance,
        star_tolerance=claimed.star_tolerance,
        ratio_tolerance=claimed.ratio_tolerance,
    )
    needed = torch.stack([draw.needed(accepted=False), draw.needed(accepted=True)])
    is_draft = step.accepted or claim.kind == "alone"  # alone p* is its own draft
    exact = int(needed.min(0).values.argmin())
    return needed[int(is_draft), step.token_id].item(), draw.chance(), exact


def _behind_the_likeliest(claim: Claim, claimed: StepDistributions) -> float:
    """Tolerances by which greedy decoding chose another token; accepted says that it is the safe
    model's likeliest one too."""
    step, star, safe = claim.recorded, claimed.star, claimed.safe
    others = torch.arange(len(safe)) != step.token_id
    behind = (star.max() - star[step.token_id]) / (
        claimed.star_tolerance[step.token_id] + ARITHMETIC
    )
    if step.safe_log_prob is None:
        return behind.item() / math.sqrt(2.0)
    lead = (safe[step.token_id] - safe[others].max()) / claim.safe_tolerance
    missing = -lead if step.accepted else lead
    # Both logits of a difference move.
    return max(behind.item(), missing.item()) / math.sqrt(2.0)
