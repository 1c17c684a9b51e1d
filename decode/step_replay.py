"""A recorded step beside its replay, under whatever support explains it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from .ledger import LedgerStep
from .level import Level
from .replay import ForcedStep
from .rounding import logit_deviation
from .rules.rule import NextToken, Rule
from .sampling_config import SamplingConfig
from .step_laws import Kind, Logits
from .step_report import StepReport, step_report
from .step_supports import SupportEdge, Supports, flipped_supports

MOST_FLIPS = 3
"""Symbols of one step that may stand on another side of a truncation's edge than in the replay."""

FLIP_COST = 1.0
"""Squared deviations that a step under another support counts for beside its draw; 1 honest step in
100 needs one, measured with top_k 20, top_p 0.9 and min_p 0.05 in half precision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReplay:
    """One step of a ledger, what the replay gives for it, and what warps its logits."""

    rule: Rule
    level: Level
    sampling: SamplingConfig
    seen: Tensor
    """(1, vocab_size) bool, as in `PromptReading`: symbols before this step."""
    forced: ForcedStep
    recorded: LedgerStep

    def report(self) -> StepReport:
        """By the replayed support, or by the nearest one that rounding allows and that explains
        the step better, a symbol at a time."""
        rows = {name: self._warped(name, self.sampling) for name in self.level.pair.models}
        best = self._report(rows, self.forced.drawn)
        if best.misfit <= 1.0 or not self._truncation.is_truncating:
            return best
        supports: Supports = {name: self._edge(name, row) for name, row in rows.items()}
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
        return self.level.warpers(self.sampling).config

    def _warped(self, name: str, sampling: SamplingConfig) -> Tensor:
        """(V,) one model's logits, on the CPU."""
        inputs = self.forced.inputs
        logits = inputs.safe_logits if name == "safe" else inputs.risky_logits
        return self.level.warpers(sampling).after(self.seen)(logits)[0].cpu()

    def _edge(self, name: str, row: Tensor) -> SupportEdge:
        deviation = self._deviation(name, row)
        return SupportEdge.of(lambda s: self._warped(name, s), self._truncation, deviation)

    def _deviation(self, name: str, row: Tensor) -> float:
        return logit_deviation(row, self.level.pair.models[name].dtype)

    def _report(self, rows: Mapping[str, Tensor], drawn: NextToken) -> StepReport:
        logits = Logits(
            safe=rows["safe"],
            risky=rows["risky"],
            safe_deviation=self._deviation("safe", rows["safe"]),
            risky_deviation=self._deviation("risky", rows["risky"]),
        )
        return step_report(_kind(self.rule), logits, drawn, self.forced, self.recorded)

    def _flipped_report(self, supports: Supports) -> StepReport:
        """With what the rule gives for logits that are warped already."""
        rows = {name: edge.kept for name, edge in supports.items()}
        device = self.forced.inputs.budget.device
        inputs = replace(
            self.forced.inputs,
            safe_logits=rows["safe"][None].to(device),
            risky_logits=rows["risky"][None].to(device),
            warp=lambda warped: warped,
        )
        report = self._report(rows, self.rule.next_token(inputs))
        return replace(report, is_flipped=True, cost=report.cost + FLIP_COST)


def _kind(rule: Rule) -> Kind:
    if not rule.is_certified:
        return "replayed"
    return "max" if rule.name == "anchored_inf" else "kl"
