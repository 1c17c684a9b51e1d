"""One recorded step against a replay: its figures by the oracle, its token by its uniforms."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import torch
from torch import Tensor

from ..ledger import LedgerStep
from ..rules.rule import BOTH, NextToken, Rule
from ..settings import SamplingConfig
from . import oracle
from .draw_deviation import Draw
from .replay import ForcedStep, Replay
from .step_laws import (
    ARITHMETIC,
    NUM_DEVIATIONS,
    Kind,
    Logits,
    Rounding,
    StepLaws,
    kl_deviation,
    logit_deviation,
    step_laws,
)

# V symbols.

SOLVER_FRACTION = 1e-5
SOLVER_NATS = 1e-7
"""A solver may miss a budget that binds by max(fraction * budget, nats), and round a spend up by as
much: docs/guarantee.md, rule 3."""

SPEND_MARGINS = 2.0
SEARCH_MARGINS = 8.0
"""`solver_margin`s by which a spend may be above its divergence, as KL may be off by one and is
charged one; and by which two searches may differ, each of which stops within 4 of the budget."""

MOST_COST = NUM_DEVIATIONS**2
"""Squared deviations by which one draw may be off."""

LEAST_WEIGHT_NATS = 700.0
"""log c from which the weight of a clipped law, 1 / c, is 0 or too small to be a whole float64."""


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
    slack: float
    """Nats by which the spend may be above it for the solver's sake."""
    cost: float
    """Squared deviations by which the laws must have moved for the token; 0 if drawn again."""
    expected_cost: float
    """The mean of it over rounding that has the deviations of `step_laws`."""
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
        figures=[
            *_figures(kind, laws, logits, drawn, recorded),
            *_divergences(laws, logits, recorded),
        ],
        divergence=laws.divergence,
        divergence_deviation=laws.divergence_deviation,
        slack=spend_slack(laws, recorded.spend),
        cost=cost,
        expected_cost=expected_cost,
    )


def solver_slack(spend: float) -> float:
    """Nats by which a spend may be above the divergence that it bounds, its margin left out."""
    return max(SOLVER_FRACTION * spend, SOLVER_NATS) if math.isfinite(spend) else 0.0


def spend_slack(laws: StepLaws, spend: float) -> float:
    """Nats by which a spend may be above the divergence: it bounds it from above."""
    return solver_slack(spend) + SPEND_MARGINS * laws.solver_margin


def difference(left: float, right: float) -> float:
    """0 for the same infinity."""
    return 0.0 if left == right else abs(left - right)


def _figures(
    kind: Kind, laws: StepLaws, logits: Logits, drawn: NextToken, recorded: LedgerStep
) -> list[Figure]:
    token_id, spend = recorded.token_id, recorded.spend
    # A spend below the divergence has rounding to explain it, and no solver.
    slack = spend_slack(laws, spend) if spend > laws.divergence else 0.0
    aimed = solver_slack(spend) + SEARCH_MARGINS * laws.solver_margin
    by_rule = difference(drawn.spend[0].item(), spend)
    is_off = by_rule > NUM_DEVIATIONS * laws.spend_deviation + aimed
    if is_off and _is_at_floor(laws, logits, recorded.budget):
        by_rule = 0.0
    star, safe = laws.star[token_id].item(), laws.safe[token_id].item()
    # Nothing is recorded where the rule did not read the safe model.
    recorded_safe = safe if recorded.safe_log_prob is None else recorded.safe_log_prob
    star_deviation = laws.star_deviation[token_id].item()
    compared = [
        ("spend", difference(laws.divergence, spend), laws.divergence_deviation, slack),
        ("spend by the rule", by_rule, laws.spend_deviation, aimed),
        ("weight", _weight_error(kind, laws, recorded.weight), 0.0, 0.0),
        ("log_prob", difference(star, recorded.log_prob), star_deviation, 0.0),
        ("safe_log_prob", difference(safe, recorded_safe), laws.deviations.safe, 0.0),
    ]
    return [Figure(name, error, NUM_DEVIATIONS * d + nats) for name, error, d, nats in compared]


def _is_at_floor(laws: StepLaws, logits: Logits, budget: float) -> bool:
    """Whether rounding decides if the budget pays for leaving the safe model's support."""
    floor = oracle.floor(laws.safe, oracle.law_of(logits.risky))
    reach = NUM_DEVIATIONS * laws.deviations.safe + solver_slack(budget)
    return floor > 0.0 and abs(floor - budget) <= reach


def _weight_error(kind: Kind, laws: StepLaws, weight: float) -> float:
    """Of log c of a clipped law, of 1 where nothing is projected; the weight of a tilted law shows
    in its divergence alone."""
    if kind in ("replayed", "alone"):
        return abs(weight - 1.0)
    if laws.log_scales is None:
        return 0.0
    lowest, highest = laws.log_scales
    if weight <= math.exp(-LEAST_WEIGHT_NATS):
        return max(0.0, LEAST_WEIGHT_NATS - highest)
    return max(0.0, lowest + math.log(weight), -math.log(weight) - highest)


def _divergences(laws: StepLaws, logits: Logits, recorded: LedgerStep) -> list[Figure]:
    """Those that were asked for, see `with_divergences`."""
    safe, risky, star = oracle.law_of(logits.safe), oracle.law_of(logits.risky), laws.star
    by, (by_safe, by_risky) = laws.deviations, laws.star_deviations
    found = {
        "kl_risky_safe": (
            oracle.kl(risky, safe),
            kl_deviation(risky, safe, (0.0, by.risky), by.safe),
        ),
        "kl_star_risky": (
            oracle.kl(star, risky),
            kl_deviation(star, risky, (by_risky, by_safe), by.risky),
        ),
    }
    return [
        Figure(name, difference(found[name][0], nats), NUM_DEVIATIONS * found[name][1])
        for name in found
        if (nats := getattr(recorded, name)) is not None
    ]


def _costs(laws: StepLaws, forced: ForcedStep, recorded: LedgerStep) -> tuple[float, float]:
    """Cost of the recorded draw, and what rounding is expected to cost."""
    if forced.inputs.uniform is None:
        return _greedy_cost(laws, recorded), 0.0
    first, second, third = forced.inputs.uniform[0].tolist()
    draw = Draw.of(laws, (first, second, third))
    is_draft = recorded.accepted or recorded.safe_log_prob is None  # alone p* is its own draft
    cost = draw.costs(accepted=is_draft)[recorded.token_id].item()
    return cost, draw.expected_cost()


def _greedy_cost(laws: StepLaws, recorded: LedgerStep) -> float:
    """Of the most likely symbol; accepted says that it is the safe model's most likely one too.

    Halved, for both logits of a difference move.
    """
    if recorded.safe_log_prob is None:
        return 0.5 * _behind(laws, recorded).square().item()
    token_id = recorded.token_id
    others = torch.arange(len(laws.safe)) != token_id
    lead = (laws.safe[token_id] - laws.safe[others].max()) / (laws.deviations.safe + ARITHMETIC)
    missing = lead.clamp_max(0.0) if recorded.accepted else lead.clamp_min(0.0)
    return 0.5 * (_behind(laws, recorded).square() + missing.square()).item()


def _behind(laws: StepLaws, recorded: LedgerStep) -> Tensor:
    """By how many deviations a symbol is less likely than the likeliest one."""
    star, token_id = laws.star, recorded.token_id
    return (star.max() - star[token_id]) / laws.star_deviation[token_id]


def _or_inf(share: float) -> float:
    return math.inf if math.isnan(share) else share


Warp = Callable[[SamplingConfig], Tensor]
"""One model's logits (V,) warped by other settings."""

LARGEST_MIN_P = 1.0 - 2.0**-24
"""min_p stays below 1."""


@dataclass(frozen=True, slots=True)
class SupportEdge:
    """One model's warped logits at a step, and the symbols whose place in them is uncertain."""

    kept: Tensor
    """(V,) -inf where truncated."""
    open: Tensor
    """(V,) the same without truncation."""
    uncertain: list[int]

    @classmethod
    def of(cls, warp: Warp, sampling: SamplingConfig, deviation: float) -> "SupportEdge":
        """deviation: of a logit; logits apart, as the ends of a gap, move by sqrt(2) of it."""
        kept = warp(sampling)
        reach = NUM_DEVIATIONS * math.sqrt(2.0) * deviation
        untruncated = warp(replace(sampling, top_k=0, top_p=1.0, min_p=0.0))
        is_uncertain = _is_kept(warp, sampling, reach) & ~_is_kept(warp, sampling, -reach)
        if sampling.top_k:
            is_uncertain |= _is_at_top_k(untruncated, sampling.top_k, reach)
        return cls(kept, untruncated, is_uncertain.nonzero()[:, 0].tolist())

    def flipped(self, symbol: int) -> "SupportEdge":
        """With a kept symbol dropped, or a dropped one kept."""
        kept = self.kept.clone()
        kept[symbol] = -math.inf if kept[symbol] > -math.inf else self.open[symbol]
        return replace(self, kept=kept)


Supports = Mapping[str, SupportEdge]
"""By "safe" and "risky"."""


def flipped_supports(supports: Supports) -> Iterator[Supports]:
    """Each uncertain symbol flipped in one model, or in both."""
    symbols = sorted(set(chain(*(edge.uncertain for edge in supports.values()))))
    for symbol in symbols:
        names = [name for name, edge in supports.items() if symbol in edge.uncertain]
        for chosen in [[name] for name in names] + ([names] if len(names) > 1 else []):
            yield {**supports, **{name: supports[name].flipped(symbol) for name in chosen}}


def _is_kept(warp: Warp, sampling: SamplingConfig, reach: float) -> Tensor:
    """(V,) bool under settings that are looser by `reach` nats, or tighter where it is negative.

    Top-p drops a tail of mass 1 - top_p, which moves like a logit; so does min_p of the largest.
    """
    min_p = min(sampling.min_p * math.exp(-reach), LARGEST_MIN_P)
    tail = min((1.0 - sampling.top_p) * math.exp(-reach), LARGEST_MIN_P)
    return warp(replace(sampling, top_p=1.0 - tail, min_p=min_p)) > -math.inf


def _is_at_top_k(logits: Tensor, top_k: int, reach: float) -> Tensor:
    """(V,) bool: within reach of the first symbol on the other side."""
    if top_k >= len(logits):
        return torch.zeros_like(logits, dtype=torch.bool)
    ordered = logits.sort(descending=True).values
    last, first_dropped = ordered[top_k - 1], ordered[top_k]
    gap = torch.where(logits >= last, logits - first_dropped, last - logits)
    return gap <= reach


MOST_FLIPS = 3
"""Symbols of one step that may stand on another side of a truncation's edge than in the replay."""

FLIP_COST = 1.0
"""Squared deviations that a step under another support counts for beside its draw; 1 honest step in
100 needs one, measured with top_k 20, top_p 0.9 and min_p 0.05 in half precision."""


@dataclass(frozen=True, slots=True)
class StepReplay:
    """One step of a ledger, and what the replay gives for it."""

    replay: Replay
    forced: ForcedStep
    recorded: LedgerStep

    def report(self) -> StepReport:
        """By the replayed support, or by the nearest one that rounding allows and that explains
        the step better, a symbol at a time."""
        sampling, given = self.replay.sampling, self.forced.inputs.logits
        names = [name for name in BOTH if name in given]
        rows = {name: self._warped(name, sampling) for name in names}
        best = self._report(rows, self.forced.drawn)
        # Where raw logits are mixed before they are warped, no model's support is known.
        if best.misfit <= 1.0 or self.replay.rule.gain > 1.0 or not self._truncation.is_truncating:
            return best
        supports: Supports = {
            name: SupportEdge.of(
                partial(self._warped, name), self._truncation, self._deviation(name, row)
            )
            for name, row in rows.items()
        }
        for _ in range(MOST_FLIPS):
            found = [(self._flipped_report(other), other) for other in flipped_supports(supports)]
            report, supports = min(found, key=lambda pair: pair[0].misfit, default=(best, supports))
            if not report.misfit < best.misfit:
                break
            best = report
        return best

    @property
    def _truncation(self) -> SamplingConfig:
        """What acts on symbols; at byte level it may have acted on tokens before."""
        return self.replay.level.warpers(self.replay.sampling).config

    def _warped(self, name: str, sampling: SamplingConfig) -> Tensor:
        """(V,) one model's logits, on the CPU."""
        logits = self.forced.inputs.logits[name]
        return self.replay.level.warpers(sampling).after(self.forced.seen)(logits)[0].cpu()

    def _deviation(self, name: str, row: Tensor) -> float:
        return max(logit_deviation(row, self._dtype(name)), self.forced.rounding.get(name, 0.0))

    def _dtype(self, name: str) -> torch.dtype:
        return self.replay.level.pair.models[name].dtype

    def _report(self, rows: Mapping[str, Tensor], drawn: NextToken) -> StepReport:
        own = {
            name: Rounding(dtype=self._dtype(name), measured=self.forced.rounding.get(name, 0.0))
            for name in BOTH
        }
        fused = replace(own["risky"], gain=self.replay.rule.gain, added=self._words_deviation())
        logits = Logits(
            safe=rows.get("safe", rows["risky"]),  # where it has other tokens, nothing is compared
            risky=rows["risky"],
            safe_rounding=own["safe"],
            risky_rounding=fused,
        )
        return step_report(_kind(self.replay.rule), logits, drawn, self.forced, self.recorded)

    def _words_deviation(self) -> float:
        """Of what the safe model says of some symbols in tokens of its own, where that is read."""
        row = self.forced.inputs.logits.get("words")
        if row is None or not (row > -math.inf).any():
            return 0.0
        return self._deviation("safe", row[0].cpu())

    def _flipped_report(self, supports: Supports) -> StepReport:
        """With what the rule gives for logits that are warped already."""
        rows = {name: edge.kept for name, edge in supports.items()}
        device = self.forced.inputs.budget.device
        inputs = replace(
            self.forced.inputs,
            logits={
                **self.forced.inputs.logits,
                **{name: row[None].to(device) for name, row in rows.items()},
            },
            warp=lambda warped: warped,
        )
        report = self._report(rows, self.replay.rule.next_token(inputs))
        return replace(report, is_flipped=True, cost=report.cost + FLIP_COST)


def _kind(rule: Rule) -> Kind:
    if "safe" not in rule.streams:
        return "alone"
    return rule.divergence or "replayed"
