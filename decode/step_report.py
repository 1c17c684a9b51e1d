"""One recorded step against a replay: its figures by the oracle, its token by its uniforms."""

import math
from dataclasses import dataclass

import torch

from . import oracle
from .divergences import recorded_divergences
from .draw_deviation import Draw
from .ledger import LedgerStep
from .replay import ForcedStep
from .rounding import ARITHMETIC, NUM_DEVIATIONS
from .rules.rule import NextToken
from .step_laws import Kind, Logits, StepLaws, kl_deviation, step_laws

SOLVER_FRACTION = 1e-5
SOLVER_NATS = 1e-7
"""A solver may miss a budget that binds by max(fraction * budget, nats), and round a spend up by as
much: docs/guarantee.md, rule 3."""

MOST_COST = NUM_DEVIATIONS**2
"""Squared deviations by which one draw may be off."""

LEAST_WEIGHT_NATS = 700.0
"""log c from which the weight of a clipped law, 1 / c, may have become 0."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A recorded number beside the one that was found, in nats."""

    name: str
    error: float
    tolerance: float

    @property
    def share(self) -> float:
        """Part of the tolerance that the error takes; NaN takes more than all."""
        if self.error == 0.0:
            return 0.0
        return _or_inf(self.error / self.tolerance) if self.tolerance > 0.0 else math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What was found of one recorded step."""

    figures: list[Figure]
    divergence: float
    """Of p* from p_s at the recorded weight or spend, in nats, by the oracle."""
    divergence_deviation: float
    cost: float
    """Squared deviations by which the laws must have moved for the token; 0 if drawn again."""
    expected_cost: float
    """The mean of it over rounding that has the deviations of `rounding`."""
    is_flipped: bool = False
    """Taken under another support than the replayed one."""

    @property
    def misfit(self) -> float:
        """The largest share; above 1 the step is refused."""
        return max(_or_inf(self.cost / MOST_COST), *(figure.share for figure in self.figures))

    def failures(self) -> list[str]:
        """What is wrong, a phrase each."""
        wrong = [f"{f.name} differs by {f.error:.3g} nats" for f in self.figures if f.share > 1.0]
        return wrong if self.cost <= MOST_COST else [*wrong, "the seed gives another token"]


def step_report(
    kind: Kind, logits: Logits, drawn: NextToken, forced: ForcedStep, recorded: LedgerStep
) -> StepReport:
    """kind: what p* the oracle takes. logits: warped. drawn: what the rule gives for them.

    forced: the step of the replay, for its budget and its uniforms.
    """
    laws = step_laws(kind, logits, recorded, drawn.log_probs()[0].cpu())
    cost, expected_cost = _costs(laws, forced, recorded)
    return StepReport(
        figures=[*_figures(laws, logits, drawn, recorded), *_divergences(laws, logits, recorded)],
        divergence=laws.divergence,
        divergence_deviation=laws.divergence_deviation,
        cost=cost,
        expected_cost=expected_cost,
    )


def solver_slack(spend: float) -> float:
    """Nats by which a spend may be above the divergence that it bounds."""
    return max(SOLVER_FRACTION * spend, SOLVER_NATS) if math.isfinite(spend) else 0.0


def difference(left: float, right: float) -> float:
    """0 for the same infinity."""
    return 0.0 if left == right else abs(left - right)


def _figures(
    laws: StepLaws, logits: Logits, drawn: NextToken, recorded: LedgerStep
) -> list[Figure]:
    token_id, weight, spend = recorded.token_id, recorded.weight, recorded.spend
    slack = solver_slack(spend)
    by_rule = difference(drawn.spend[0].item(), spend)
    by_rule_nats = NUM_DEVIATIONS * laws.spend_deviation + slack
    if by_rule > by_rule_nats and _is_at_floor(laws, logits, recorded.budget):
        by_rule = 0.0
    star, star_deviation = laws.star[token_id].item(), laws.star_deviation[token_id].item()
    safe = laws.safe[token_id].item()
    return [
        Figure(
            "spend",
            difference(laws.divergence, spend),
            NUM_DEVIATIONS * laws.divergence_deviation + slack,
        ),
        Figure("spend by the rule", by_rule, by_rule_nats),
        Figure("weight", _weight_error(laws, weight), 0.0),
        Figure("log_prob", difference(star, recorded.log_prob), NUM_DEVIATIONS * star_deviation),
        Figure(
            "safe_log_prob",
            difference(safe, recorded.safe_log_prob),
            NUM_DEVIATIONS * laws.safe_deviation,
        ),
    ]


def _is_at_floor(laws: StepLaws, logits: Logits, budget: float) -> bool:
    """Whether rounding decides if the budget pays for leaving the safe model's support."""
    floor = oracle.floor(laws.safe, oracle.law_of(logits.risky))
    reach = NUM_DEVIATIONS * laws.safe_deviation + solver_slack(budget)
    return floor > 0.0 and abs(floor - budget) <= reach


def _weight_error(laws: StepLaws, weight: float) -> float:
    """Of log c of a clipped law; the weight of another one shows in its divergence alone."""
    if laws.log_scales is None:
        return 0.0
    lowest, highest = laws.log_scales
    if weight == 0.0:
        return max(0.0, LEAST_WEIGHT_NATS - highest)
    return max(0.0, lowest + math.log(weight), -math.log(weight) - highest)


def _divergences(laws: StepLaws, logits: Logits, recorded: LedgerStep) -> list[Figure]:
    """Those that were asked for, see `with_divergences`."""
    safe, risky, star = laws.safe, oracle.law_of(logits.risky), laws.star
    by_safe, by_risky = laws.star_deviations
    found = {
        "kl_risky_safe": (
            oracle.kl(risky, safe),
            kl_deviation(risky, safe, (0.0, logits.risky_deviation), logits.safe_deviation),
        ),
        "kl_star_risky": (
            oracle.kl(star, risky),
            kl_deviation(star, risky, (by_risky, by_safe), logits.risky_deviation),
        ),
    }
    return [
        Figure(name, difference(found[name][0], nats), NUM_DEVIATIONS * found[name][1])
        for name, nats in recorded_divergences(recorded).items()
    ]


def _costs(laws: StepLaws, forced: ForcedStep, recorded: LedgerStep) -> tuple[float, float]:
    """Cost of the recorded draw, and what rounding is expected to cost."""
    if forced.inputs.uniform is None:
        return _greedy_cost(laws, recorded), 0.0
    first, second, third = forced.inputs.uniform[0].tolist()
    draw = Draw.of(laws, (first, second, third))
    cost = draw.costs(accepted=recorded.accepted)[recorded.token_id].item()
    return cost, draw.expected_cost()


def _greedy_cost(laws: StepLaws, recorded: LedgerStep) -> float:
    """Of the most likely symbol; accepted says that it is the safe model's most likely one too.

    Halved, for both logits of a difference move.
    """
    token_id = recorded.token_id
    behind = (laws.star.max() - laws.star[token_id]) / laws.star_deviation[token_id]
    others = torch.arange(len(laws.safe)) != token_id
    lead = (laws.safe[token_id] - laws.safe[others].max()) / (laws.safe_deviation + ARITHMETIC)
    missing = lead.clamp_max(0.0) if recorded.accepted else lead.clamp_min(0.0)
    return 0.5 * (behind.square() + missing.square()).item()


def _or_inf(share: float) -> float:
    return math.inf if math.isnan(share) else share
