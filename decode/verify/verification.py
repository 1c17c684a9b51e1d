"""Replay of a ledger against the models: every figure checked, every token drawn again."""

import math
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from ...kernels import reference
from ..ambient import in_plain_torch
from ..ledger import Ledger, LedgerError, LedgerStep, ledger_of
from ..pair.model_pair import ModelPair
from ..rules.rule import BOTH
from ..settings import SamplingConfig
from ..warpers import CARRYING_GAP, largest_logit
from .consistency import inconsistencies
from .replay import ForcedStep, Replay
from .rounding import ARITHMETIC, OF_QUANTIZED, logit_tolerance
from .step import Kind, Step
from .step_check import check_step, difference, divergences
from .supports import other_supports
from .text_check import (
    DEVIATIONS_OF_A_TEMPERATURE,
    most_at_a_boundary,
    most_gain,
    steepness,
    sums_apart,
)

if TYPE_CHECKING:
    from ..generation import Generation

# V symbols.

TRUNCATION_NEEDS = 0.1
"""Tolerances that count for a step whose support rounding may have decided: it is at an edge."""


@dataclass(kw_only=True, slots=True)
class Verification:
    """The outcome of a replay; true, and `failures` empty, exactly when nothing is wrong."""

    num_steps: int = 0
    spent: float = 0.0
    """Nats that the ledger records as spent."""
    bound: float = math.inf
    """Nats; infinite where the ledger is not certified."""
    divergence: float = 0.0
    """The log-ratio of p* to p_s that steps are charged (mean, worst or drawn), summed over them,
    in nats: by the reference, not by the ledger; 0 for rules that certify nothing."""
    tolerance: float = 0.0
    """Nats by which rounding may move that sum, and so by which it may exceed the bound."""
    tokens_drawn_again: int = 0
    """Tokens that the seed gives again, exactly."""
    tokens_at_a_boundary: int = 0
    """Tokens that the seed gives only if rounding moved the distributions, within its tolerance."""
    gain: float = 0.0
    """Nats of log p_r / p_s that they have more than the tokens that the seed gives exactly."""
    most_gain: float = 0.0
    """Nats that chance explains of that."""
    failures: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not self.failures

    def __bool__(self) -> bool:
        return self.is_ok

    def __str__(self) -> str:
        if not self.is_ok:
            others = len(self.failures) - 1
            return f"REFUSED: {self.failures[0]}" + (f" (and {others} more)" if others else "")
        tokens = f"{self.num_steps} token{'' if self.num_steps == 1 else 's'} reproduced"
        if self.tokens_at_a_boundary:
            tokens += f" ({self.tokens_at_a_boundary} within rounding)"
        if math.isinf(self.bound):
            return f"OK: {tokens}, no bound holds"
        return f"OK: {tokens}, {self.spent:.1f} of {self.bound:.1f} nats spent"


@overload
def verify(ledger: "Ledger | Generation | Path | str", pair: ModelPair) -> Verification: ...
@overload
def verify(ledger: list[Any] | tuple[Any, ...], pair: ModelPair) -> list[Verification]: ...
def verify(ledger: Any, pair: ModelPair) -> Verification | list[Verification]:
    """Check a ledger, that of a result or of a file, against the models that it names; of a list,
    each.

    First the ledger alone: types and ranges, models, level, settings, that each allowance follows
    from the rule and the spends before it, that spends stay within allowances and their sums within
    the bound after every step, how it ended. Then both models run over the recorded tokens: the
    debt, what the rule gives at each budget, and by distributions computed apart from the solvers
    what every step is charged, log p*, log p_s, the sums against the spends and the bound after
    every step, and every token from its seed; what `with_divergences` added too. Tolerances
    follow from the models' dtypes: see `rounding`.
    Not checked: stop strings, num_return_sequences, prior_bound, forwards beyond the least number.
    Raises LedgerError for a file that was touched or damaged, and ValueError for what is no ledger
    or no pair; all else is in `failures`.
    """
    if not isinstance(pair, ModelPair):
        kinds = " and ".join(type(value).__name__ for value in (ledger, pair))
        raise ValueError(f"write verify(ledger, pair), with a ModelPair: got {kinds}")
    if isinstance(ledger, list | tuple):
        return [verify(each, pair) for each in ledger]
    return _verified(ledger_of(ledger), pair)


@in_plain_torch
def _verified(ledger: Ledger, pair: ModelPair) -> Verification:
    # 1. The ledger by itself: nothing is run for one that contradicts itself.
    report = Verification(num_steps=len(ledger.steps), failures=inconsistencies(ledger, pair))
    if not (report.is_ok and ledger.steps):
        return report
    report.spent, report.bound = ledger.spent, ledger.header.bound if ledger.certified else math.inf
    # 2. What both models say of the prompt, which decides the debt.
    replay = Replay(ledger, pair)
    report.failures += _prompt_failures(replay)
    if not report.is_ok:
        return report
    # 3. Each step at its recorded budget; the allowances follow from the spends, as was checked.
    steps = []
    for forced, recorded in zip(replay.steps(), ledger.steps, strict=True):
        if not forced.drawn.is_valid.item():
            report.failures.append(f"step {recorded.step}: the replayed logits are no distribution")
            return report
        steps.append(_checked(replay, forced, recorded))
        report.failures += [f"step {recorded.step}: {failure}" for failure in steps[-1].failures]
    # 4. What each step alone may be off by, all of them together may not.
    _sum_up(replay, steps, report)
    return report


def _prompt_failures(replay: Replay) -> list[str]:
    header, prompt = replay.ledger.header, replay.prompt
    if error := prompt.errors[0]:
        return [error]
    ratios = prompt.ratios[0]
    debt = replay.rule.debt_for(ratios)
    debt = max(debt, header.least_debt or 0.0)
    failures = []
    if not difference(debt, header.debt) <= _ratio_tolerance(replay, min(debt, header.debt)):
        failures.append(f"debt {header.debt}, replayed {debt}")
    recorded = header.prompt_ratios
    if recorded is None:
        return failures
    if len(recorded) != len(ratios):
        return [*failures, f"{len(recorded)} prompt ratios, replayed {len(ratios)}"]
    for nats, replayed in zip(recorded, ratios.tolist(), strict=True):
        gap = difference(nats, replayed)
        if not gap <= _ratio_tolerance(replay, min(abs(nats), abs(replayed))):
            return [*failures, f"prompt ratios differ by {gap:.3g} nats"]
    return failures


def _ratio_tolerance(replay: Replay, nats: float) -> float:
    """Nats by which a ratio of this size may differ: the rounding of a row's logits, or of the
    ratio itself where that is larger than they are."""
    tolerance = 0.0
    for name, logits in replay.prompt.logits.items():
        if name in replay.level.pair.models:
            by_row = _tolerance(replay, name, replay.largest_logit(name, logits[0].cpu()))
            tolerance += replay.level.symbols_per_token * by_row + _tolerance(replay, name, nats)
    return tolerance


def _tolerance(replay: Replay, name: str, largest: float) -> float:
    """`logit_tolerance` of one of the pair's models."""
    pair = replay.level.pair
    times = OF_QUANTIZED if name in pair.quantization else 1.0
    return logit_tolerance(largest, pair.models[name].dtype, times)


def _checked(replay: Replay, forced: ForcedStep, recorded: LedgerStep) -> Step:
    """Check a step by the replayed supports; where that fails, by others that rounding may have
    made of them."""
    step = check_step(_step(replay, forced, recorded))
    # At byte level truncation may have acted on tokens before; where a rule mixes raw logits, no
    # model's support is known.
    truncation = replay.level.warpers(replay.sampling).config
    if not step.failures or not truncation.is_truncating or replay.rule.gain > 1.0:
        return step
    logits, device = forced.inputs.logits, forced.inputs.budget.device
    warps = {name: partial(_warped, replay, forced, name) for name in BOTH if name in logits}
    tolerances = {"safe": step.safe_by, "risky": step.risky_by}
    for rows in other_supports(warps, truncation, tolerances):
        there = {name: row[None].to(device) for name, row in rows.items()}
        inputs = replace(forced.inputs, logits={**logits, **there}, warp=lambda warped: warped)
        drawn, risky = replay.rule.next_token(inputs), rows["risky"]
        safe = rows.get("safe", risky)
        other = check_step(replace(step, safe_logits=safe, risky_logits=risky, drawn=drawn))
        if not other.failures:
            other.rounding += TRUNCATION_NEEDS
            other.chance, other.gain = 1.0, step.gain
            return other
    return step


def _warped(replay: Replay, forced: ForcedStep, name: str, sampling: SamplingConfig) -> Tensor:
    """(V,) one model's warped logits, on the CPU."""
    warp = replay.level.warpers(sampling).after(forced.seen)
    return warp(forced.inputs.logits[name])[0].cpu()


def _step(replay: Replay, forced: ForcedStep, recorded: LedgerStep) -> Step:
    """The step with the warped logits of both models, and what rounding may do to them."""
    rule, inputs = replay.rule, forced.inputs
    rows = {n: _warped(replay, forced, n, replay.sampling) for n in BOTH if n in inputs.logits}
    star = forced.drawn.log_probs()[0].cpu()
    matters = star >= star.max() - CARRYING_GAP
    matters[recorded.token_id] = True
    if rule.divergence == "max" and not rule.is_projection:  # the symbol of the largest ratio
        matters[(star - rows["safe"].log_softmax(-1)).nan_to_num(-math.inf).argmax()] = True
    by = {
        name: _tolerance(replay, name, replay.largest_logit(name, row, matters, step=recorded.step))
        for name, row in rows.items()
    }
    by["risky"] *= rule.gain
    words = inputs.logits.get("words") if rule.retokenizes else None
    if words is not None and (words > -math.inf).any():
        # What the safe model says of some symbols, in its tokens, is mixed in.
        by["risky"] += _tolerance(replay, "safe", largest_logit(words[0].cpu()).item())
    kind: Kind = "replayed" if "safe" in rule.streams else "alone"
    if kind == "replayed" and rule.is_projection and rule.divergence:
        kind = "clipped" if rule.divergence == "max" else "tilted"
    return Step(
        recorded=recorded,
        kind=kind,
        charge=rule.charge or "mean",  # rules that bound nothing report KL
        # Where the safe model has other tokens, nothing is compared.
        safe_logits=rows.get("safe", rows["risky"]),
        risky_logits=rows["risky"],
        reads_risky="risky" in rule.streams,
        safe_by=by.get("safe", by["risky"]),
        risky_by=by["risky"],
        drawn=forced.drawn,
        uniform=None if inputs.uniform is None else tuple(inputs.uniform[0].tolist()),
    )


def _sum_up(replay: Replay, steps: list[Step], report: Verification) -> None:
    """Check what holds for all steps together."""
    report.tokens_drawn_again = sum(step.rounding == 0.0 for step in steps)
    report.tokens_at_a_boundary = len(steps) - report.tokens_drawn_again
    if report.tokens_at_a_boundary > (most := most_at_a_boundary(steps)):
        report.failures.append(
            f"{report.tokens_at_a_boundary} of {len(steps)} tokens follow only within rounding "
            f"from the seed; {most:.0f} are explained"
        )
    if not replay.rule.is_certified:
        return
    report.gain, report.most_gain = math.fsum(step.gain for step in steps), most_gain(steps)
    if report.gain > report.most_gain + ARITHMETIC:
        report.failures.append(
            f"tokens that follow only within rounding gain {report.gain:.3g} nats of log p_r/p_s; "
            f"{report.most_gain:.3g} are explained"
        )
    if not abs(steeper := steepness(steps)) <= DEVIATIONS_OF_A_TEMPERATURE:
        report.failures.append(
            f"the recorded log p_s of all steps are those of another temperature, by {steeper:.3g} "
            f"deviations of rounding; {DEVIATIONS_OF_A_TEMPERATURE:g} are explained"
        )
    # Errors of steps are independent: their sum grows with the root of their number.
    report.tolerance = math.hypot(*(step.nats_by for step in steps))
    report.divergence = math.fsum(step.nats for step in steps)
    if failure := sums_apart([step.spend for step in replay.ledger.steps], steps):
        report.failures.append(failure)


@in_plain_torch
def with_divergences(ledger: "Ledger | Generation | Path | str", pair: ModelPair) -> Ledger:
    """The ledger with `kl_risky_safe` and `kl_star_risky` of every step, and its prompt's ratios.

    Both models run once more over the recorded tokens; `verify` then checks these figures too.
    Raises LedgerError, a ValueError, for a file that was touched, for other models than it names,
    for what does not hold together, and where a model's logits are no distribution.
    Source: paper, figure of per-step divergences.
    """
    ledger = ledger_of(ledger)
    if failures := inconsistencies(ledger, pair):
        raise LedgerError(failures[0])
    replay = Replay(ledger, pair, scores_prompt=True)
    if not replay.level.compares_models:
        raise LedgerError("the models have different tokens, so no divergence is known")
    steps = []
    for forced, recorded in zip(replay.steps(), ledger.steps, strict=True):
        # In float32 the masses of p* may sum to a little more than 1, which a KL of 0 would show.
        star = reference.log_softmax(forced.drawn.log_probs()[0].cpu().double())
        rows = (_warped(replay, forced, name, replay.sampling) for name in ("risky", "safe"))
        figures: dict[str, Any] = divergences(star, *rows)
        if any(map(math.isnan, figures.values())):
            raise LedgerError(f"step {recorded.step}: the replayed logits are no distribution")
        steps.append(replace(recorded, **figures))
    ratios = replay.prompt.ratios[0].tolist()
    return replace(ledger, header=replace(ledger.header, prompt_ratios=ratios), steps=steps)
