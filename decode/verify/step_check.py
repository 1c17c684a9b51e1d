"""The check of one recorded step: its figures by `kernels.reference`, its token by `draw`.

The reference shares nothing with the solvers. What differs between the recorded run and the replay
is the rounding of the models, see `rounding`.
"""

import math

import torch
from torch import Tensor

from ...kernels import reference
from ...kernels.spend import BAN_GAP
from ..rules.rule import token_spend
from .draw import Draw
from .rounding import ARITHMETIC, NUM_DEVIATIONS, moved
from .step import SOLVER_FRACTION, SOLVER_NATS, Step, raised, unbanned

# V symbols. Distributions are (V,) float64 log-probabilities, tolerances are in nats.

MOST_OF_A_DRAW = 1.0
"""Tolerances by which rounding may move the distributions of one step for its uniforms to give its
token: a uniform near an edge between two tokens gives one token in one forward and the other in the
next."""

LEAST_WEIGHT_NATS = 700.0
"""log c from which the weight of a clipped distribution, 1 / c, is 0 or too small to be a whole
float64."""


def difference(left: float, right: float) -> float:
    """0 for the same infinity."""
    return 0.0 if left == right else abs(left - right)


def check_step(step: Step) -> Step:
    """The step with what its check finds."""
    # 1. p_s and p* in float64, apart from the solvers, were made with the step.
    # 2. The figures that follow from them, and log p_r / p_s: who chooses tokens within rounding
    #    chooses by it.
    step.failures = [
        f"{name} differs by {error:.3g} nats"
        for name, (error, tolerance) in _figures(step).items()
        if not error <= tolerance
    ]
    ratios = reference.log_softmax(step.risky_logits) - step.safe
    ratios = ratios.nan_to_num(0.0, 0.0, 0.0)  # where one has no mass, or nothing is looked at
    probs = step.star.exp()
    step.spread = (probs * (ratios - (probs * ratios).sum()).square()).sum().sqrt().item()
    step.steepness = _steepness(step)
    # 3. The token, drawn again by the recorded seed.
    exact = _draw_again(step)
    if not step.rounding <= MOST_OF_A_DRAW:
        step.failures.append("the seed gives another token")
    if step.rounding:
        step.gain = (ratios[step.recorded.token_id] - ratios[exact]).item()
    return step


def _figures(step: Step) -> dict[str, tuple[float, float]]:
    """Each figure's error, and the error that is allowed, by name."""
    recorded, token_id = step.recorded, step.recorded.token_id
    star, safe = step.star[token_id].item(), step.safe[token_id].item()
    # Only a spend above its divergence has the solver to explain it.
    above = step.slack if recorded.spend > step.nats else 0.0
    token_ids = torch.tensor([token_id], device=step.drawn.spend.device)
    by_rule = difference(token_spend(step.drawn, token_ids)[0].item(), recorded.spend)
    if by_rule > step.spend_by + step.slack and _is_at_threshold(step):
        by_rule = 0.0
    # A projection left nats though its weight says that the budget binds: a distribution nearer to
    # the risky model was feasible. No rounding explains it, as spends are the solver's.
    # A drawn token may cost less than p* might have spent, which follows from the budget itself.
    is_projected = step.kind in ("tilted", "clipped")
    is_binding = is_projected and 0.0 < recorded.weight < 1.0 and step.charge != "drawn"
    left = max(0.0, recorded.budget - recorded.spend) if is_binding else 0.0
    # Nothing is recorded where the rule did not read the safe model.
    recorded_safe = safe if recorded.safe_log_prob is None else recorded.safe_log_prob
    log_probs = reference.log_softmax if is_projected else unbanned
    safe_by = step.token_moved(log_probs, [step.safe_logits], [step.safe_by])
    figures = {
        "spend": (difference(step.nats, recorded.spend), step.nats_by + above),
        "spend by the rule": (by_rule, step.spend_by + step.slack),
        "budget left": (left, max(step.slack, SOLVER_FRACTION * recorded.budget)),
        "weight": (_weight_error(step), 0.0),
        "log_prob": (difference(star, recorded.log_prob), step.token_by),
        "safe_log_prob": (difference(safe, recorded_safe), max(ARITHMETIC, safe_by)),
    }
    if step.charge == "drawn" and recorded.safe_log_prob is not None:
        # The cost follows from the two figures next to it, whatever the models say.
        cost = recorded.log_prob - recorded.safe_log_prob
        figures["cost of the token"] = (difference(cost, recorded.spend), SOLVER_NATS)
    return figures | _compared(step)


def _compared(step: Step) -> dict[str, tuple[float, float]]:
    """The errors, and those allowed, of the divergences that the step records, by name."""
    star_by = step.star_by.max().item()
    rows = {
        "kl_risky_safe": (step.rows, step.rows_by),
        "kl_star_risky": ((step.star, step.risky_logits), (star_by, step.risky_by)),
    }
    compared = {}
    for name, ((left, right), tolerances) in rows.items():
        if (recorded := getattr(step.recorded, name)) is not None:
            by = moved(_kl, (left, right), tolerances)
            by += raised(reference.log_softmax(left), math.hypot(*tolerances))
            nats = divergences(step.star, *step.rows)[name]
            compared[name] = (difference(nats, recorded), ARITHMETIC + by)
    return compared


def divergences(star: Tensor, risky_logits: Tensor, safe_logits: Tensor) -> dict[str, float]:
    """Nats by the fields of `LedgerStep`; infinite where one has mass that the other lacks.

    star: (V,) float64 log p*. risky_logits, safe_logits: (V,) warped.
    """
    return {
        "kl_risky_safe": _kl(risky_logits, safe_logits).item(),
        "kl_star_risky": reference.kl_divergence(star[None], risky_logits[None]).item(),
    }


def _kl(left: Tensor, right: Tensor) -> Tensor:
    return reference.kl_divergence(reference.log_softmax(left)[None], right[None])[0]


def _is_at_threshold(step: Step) -> bool:
    """Whether rounding decides if the budget pays for leaving the safe model's support, or for the
    whole risky model where a rule takes that or nothing."""
    budget = step.recorded.budget
    floor = reference.support_floor(*(row[None] for row in step.rows)).item()
    reach = step.safe_by + max(SOLVER_FRACTION * budget, SOLVER_NATS)
    if floor > ARITHMETIC and abs(floor - budget) <= reach:
        return True
    takes_all_or_nothing = {step.recorded.weight, step.drawn.weight[0].item()} == {0.0, 1.0}
    whole, reach = _kl(*step.rows).item(), moved(_kl, step.rows, step.rows_by)
    return takes_all_or_nothing and abs(whole - budget) <= reach


def _weight_error(step: Step) -> float:
    """The error of log c of a clipped distribution, of 1 where nothing is projected; the weight of
    a tilted distribution shows in its divergence alone."""
    weight = step.recorded.weight
    if step.kind in ("replayed", "alone"):
        return abs(weight - 1.0)
    if step.log_scales is None:
        return 0.0
    lowest, highest = step.log_scales
    if weight <= math.exp(-LEAST_WEIGHT_NATS):
        return max(0.0, LEAST_WEIGHT_NATS - highest)
    return max(0.0, lowest + math.log(weight), -math.log(weight) - highest)


def _steepness(step: Step) -> tuple[float, float]:
    recorded, token_id = step.recorded.safe_log_prob, step.recorded.token_id
    replayed, others = step.safe[token_id].item(), step.safe.exp()
    if recorded is None or not -math.inf < max(recorded, replayed) < 0.0:
        return 0.0, 0.0
    # The logarithm of the odds errs by what the token's logit does, less the mean of the others,
    # however nearly certain it is.
    others[token_id] = 0.0
    others /= others.sum()
    alone = math.hypot(1.0, others.norm().item())
    deviation = step.safe_by * alone / NUM_DEVIATIONS - ARITHMETIC / math.expm1(replayed)
    slope = replayed - (others * step.safe.clamp_min(-BAN_GAP)).sum().item()
    return (_log_odds(recorded) - _log_odds(replayed)) / deviation, slope / deviation


def _log_odds(log_prob: float) -> float:
    return log_prob - math.log(-math.expm1(log_prob))


def _draw_again(step: Step) -> int:
    """Set how far rounding must move the distributions for the uniforms to give the recorded token,
    and the chance that it gives another; returns the token that they give as they are."""
    recorded = step.recorded
    if step.uniform is None:
        step.rounding, step.chance = max(0.0, _below_the_likeliest(step)), 1.0
        return int(step.star.argmax())
    draw = Draw(
        uniform=step.uniform,
        safe=step.safe,
        star=step.star,
        safe_tolerance=step.risky_by if step.kind == "alone" else step.safe_by,
        star_tolerance=step.star_by,
        ratio_tolerance=step.ratio_by,
    )
    needed = torch.stack([draw.needed(accepted=False), draw.needed(accepted=True)])
    is_draft = recorded.accepted or step.kind == "alone"  # alone p* is its draft
    step.rounding = needed[int(is_draft), recorded.token_id].item()
    step.chance = draw.chance()
    return int(needed.min(0).values.argmin())


def _below_the_likeliest(step: Step) -> float:
    """Tolerances by which greedy decoding chose another token; accepted says that it is the safe
    model's likeliest one too."""
    recorded, token_id = step.recorded, step.recorded.token_id
    gap = step.star.max() - step.star[token_id]
    missing = gap / (step.star_by[token_id] + ARITHMETIC)
    if recorded.safe_log_prob is not None:
        others = step.safe[torch.arange(len(step.safe)) != token_id]
        lead = (step.safe[token_id] - others.max()) / step.safe_by
        missing = max(missing, -lead if recorded.accepted else lead)
    return missing.item() / math.sqrt(2.0)  # both logits of a difference move
