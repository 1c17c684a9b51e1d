"""Replay of a ledger against the models: every figure checked, every token drawn again."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, compress, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
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
from .step_check import TRUNCATION_NEEDS, StepReport, check_step, difference, divergences
from .step_distributions import Claim, Kind
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

Warp = Callable[[SamplingConfig], Tensor]
"""One model's logits (V,) warped by these settings."""

LARGEST_SHARE = 1.0 - 2.0**-24
"""min_p, and the tail that top_p drops, stay below 1."""


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


def _checked(replay: Replay, forced: ForcedStep, recorded: LedgerStep) -> StepReport:
    """Check a step by the replayed supports; where that fails, by others that rounding may have
    made of them."""
    claim = _claim(replay, forced, recorded)
    report = check_step(claim)
    # At byte level truncation may have acted on tokens before; where a rule mixes raw logits, no
    # model's support is known.
    truncation = replay.level.warpers(replay.sampling).config
    if not report.failures or not truncation.is_truncating or replay.rule.gain > 1.0:
        return report
    names = [name for name in BOTH if name in forced.inputs.logits]
    warps = {name: partial(_warped, replay, forced, name) for name in names}
    tolerances = {"safe": claim.safe_tolerance, "risky": claim.risky_tolerance}
    for rows in other_supports(warps, truncation, tolerances):
        device = forced.inputs.budget.device
        ours = {name: row[None].to(device) for name, row in rows.items()}
        logits = {**forced.inputs.logits, **ours}
        inputs = replace(forced.inputs, logits=logits, warp=lambda warped: warped)
        other = replace(
            claim,
            safe_logits=rows.get("safe", rows["risky"]),
            risky_logits=rows["risky"],
            drawn=replay.rule.next_token(inputs),
        )
        flipped = check_step(other)
        if not flipped.failures:
            rounding = flipped.rounding + TRUNCATION_NEEDS
            return replace(flipped, rounding=rounding, chance=1.0, gain=report.gain)
    return report


def other_supports(
    warps: Mapping[str, Warp], sampling: SamplingConfig, tolerances: Mapping[str, float]
) -> Iterator[dict[str, Tensor]]:
    """Warped logits of both models with one symbol kept that was dropped, or dropped that was kept,
    in one of them or in both, or with two changed for each other in one, wherever rounding may have
    decided that.

    warps, tolerances: by model; tolerances are of a warped logit, in nats.
    """
    kept = {name: warp(sampling) for name, warp in warps.items()}
    flipped = {
        name: torch.where(kept[name] > -math.inf, -math.inf, warp(sampling.untruncated))
        for name, warp in warps.items()
    }
    # Two logits move, as the ends of a gap.
    uncertain = {
        name: _uncertain(warp, sampling, math.sqrt(2.0) * tolerances[name])
        for name, warp in warps.items()
    }
    for symbol in sorted(set(chain(*uncertain.values()))):
        choices = [(False, True) if symbol in uncertain[name] else (False,) for name in warps]
        for flips in product(*choices):
            if any(flips):
                rows = {name: logits.clone() for name, logits in kept.items()}
                for name in compress(warps, flips):
                    rows[name][symbol] = flipped[name][symbol]
                yield rows
    # Which of two symbols that are nearly alike is the last one kept.
    for name, tolerance in tolerances.items():
        if name in warps and (sampling.top_k or sampling.top_p < 1.0):
            for pair in _alike_across(kept[name], flipped[name], math.sqrt(2.0) * tolerance):
                rows = {other: logits.clone() for other, logits in kept.items()}
                rows[name][pair] = flipped[name][pair]
                yield rows


def _alike_across(kept: Tensor, dropped: Tensor, reach: float) -> Iterator[list[int]]:
    """Symbols that are kept, each with one that is dropped and whose logit is within reach of its.

    kept, dropped: (V,) warped logits, -inf for those of the other kind.
    """
    last = kept[kept > -math.inf].min()
    inside = ((kept > -math.inf) & (kept - dropped.max() <= reach)).nonzero()[:, 0].tolist()
    outside = (last - dropped <= reach).nonzero()[:, 0].tolist()
    for one, other in product(inside, outside):
        if float(kept[one] - dropped[other]) <= reach:
            yield [one, other]


def _uncertain(warp: Warp, sampling: SamplingConfig, reach: float) -> list[int]:
    is_uncertain = _is_kept(warp, sampling, reach) & ~_is_kept(warp, sampling, -reach)
    logits = warp(sampling.untruncated)
    if 0 < sampling.top_k < len(logits):
        # Of top_k: symbols within reach of the first one on the other side.
        last, first_dropped = logits.topk(sampling.top_k + 1).values[-2:]
        gap = torch.where(logits >= last, logits - first_dropped, last - logits)
        is_uncertain |= gap <= reach
    symbols: list[int] = is_uncertain.nonzero()[:, 0].tolist()
    return symbols


def _is_kept(warp: Warp, sampling: SamplingConfig, reach: float) -> Tensor:
    """(V,) bool under settings that are looser by `reach` nats, or tighter where it is negative.

    Top-p drops a tail of mass 1 - top_p, which moves like a logit; so does min_p of the largest.
    """
    min_p = min(sampling.min_p * math.exp(-reach), LARGEST_SHARE)
    tail = min((1.0 - sampling.top_p) * math.exp(-reach), LARGEST_SHARE)
    return warp(replace(sampling, top_p=1.0 - tail, min_p=min_p)) > -math.inf


def _warped(replay: Replay, forced: ForcedStep, name: str, sampling: SamplingConfig) -> Tensor:
    """(V,) one model's warped logits, on the CPU."""
    warp = replay.level.warpers(sampling).after(forced.seen)
    return warp(forced.inputs.logits[name])[0].cpu()


def _claim(replay: Replay, forced: ForcedStep, recorded: LedgerStep) -> Claim:
    """The figures of a step, beside the warped logits of both models."""
    rule, inputs = replay.rule, forced.inputs
    names = [name for name in BOTH if name in inputs.logits]
    rows = {name: _warped(replay, forced, name, replay.sampling) for name in names}
    star = forced.drawn.log_probs()[0].cpu()
    matters = star >= star.max() - CARRYING_GAP
    matters[recorded.token_id] = True
    if rule.divergence == "max" and not rule.is_projection:  # the symbol of the largest ratio
        matters[(star - rows["safe"].log_softmax(-1)).nan_to_num(-math.inf).argmax()] = True
    tolerances = {
        name: _tolerance(replay, name, replay.largest_logit(name, row, matters, step=recorded.step))
        for name, row in rows.items()
    }
    risky_tolerance = rule.gain * tolerances["risky"]
    words = inputs.logits.get("words") if rule.retokenizes else None
    if words is not None and (words > -math.inf).any():
        # What the safe model says of some symbols, in its tokens, is mixed in.
        risky_tolerance += _tolerance(replay, "safe", largest_logit(words[0].cpu()).item())
    uniform = None if inputs.uniform is None else inputs.uniform[0].tolist()
    form: Kind = "clipped" if rule.divergence == "max" else "tilted"
    kind: Kind = form if rule.is_projection and rule.divergence else "replayed"
    return Claim(
        kind=kind if "safe" in rule.streams else "alone",
        # Rules that bound nothing report KL.
        charge=rule.charge or "mean",
        recorded=recorded,
        # Where the safe model has other tokens, nothing is compared.
        safe_logits=rows.get("safe", rows["risky"]),
        risky_logits=rows["risky"],
        reads_risky="risky" in rule.streams,
        safe_tolerance=tolerances.get("safe", risky_tolerance),
        risky_tolerance=risky_tolerance,
        drawn=forced.drawn,
        uniform=None if uniform is None else (uniform[0], uniform[1], uniform[2]),
    )


def _sum_up(replay: Replay, steps: list[StepReport], report: Verification) -> None:
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
    report.tolerance = math.hypot(*(step.tolerance for step in steps))
    report.divergence = math.fsum(step.divergence for step in steps)
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
