"""Replay of a ledger against the models: every figure checked, every token drawn again."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..ledger import Ledger, LedgerError
from ..models.model_pair import ModelPair
from ..rules.rule import Rule
from . import oracle
from .consistency import inconsistencies
from .replay import ForcedStep, Replay
from .step_laws import NUM_DEVIATIONS, logit_deviation, relative_deviation
from .step_report import MOST_COST, StepReplay, StepReport, difference


@dataclass(kw_only=True, slots=True)
class Verification:
    """The outcome of a replay; true, and `failures` empty, exactly when the ledger stands."""

    num_steps: int = 0
    bound: float = math.inf
    """Nats; infinite where the ledger is not certified."""
    divergence: float = 0.0
    """Of p* from p_s, summed over the steps, in nats: by the oracle, not by the ledger; 0 for rules
    that certify nothing."""
    tolerance: float = 0.0
    """Nats by which rounding may move that sum, and so by which it may exceed the bound."""
    tokens_drawn_again: int = 0
    """Tokens that the seed gives again, exactly."""
    tokens_at_a_boundary: int = 0
    """Tokens given again only by laws moved within rounding."""
    boundary_cost: float = 0.0
    """Squared deviations of rounding that these tokens need together."""
    most_boundary_cost: float = 0.0
    """What rounding explains: one draw at its own limit, and what rounding costs on average; honest
    ledgers were measured at 0.7 of it at most, most below 0.1."""
    max_spend_error: float = 0.0
    max_log_prob_error: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not self.failures

    def __bool__(self) -> bool:
        return self.is_ok

    def __str__(self) -> str:
        verdict = "verified" if self.is_ok else f"REFUSED: {self.failures[0]}"
        return (
            f"{verdict}: {self.num_steps} steps, {self.tokens_drawn_again} tokens drawn again "
            f"(+{self.tokens_at_a_boundary} at a boundary, which takes {self.boundary_cost:.3g} of "
            f"{self.most_boundary_cost:.3g}), divergence {self.divergence:.6g} nats (tolerance "
            f"{self.tolerance:.1e}), bound {self.bound:.6g}, largest difference spend "
            f"{self.max_spend_error:.1e}, log p {self.max_log_prob_error:.1e} nats"
        )


def verify(ledger: Ledger | Path | str, pair: ModelPair) -> Verification:
    """Check a ledger against the models that it names.

    First the ledger alone: types and ranges, models, level, settings, that each allowance follows
    from the rule and the spends before it, that spends stay within allowances and their sum within
    the bound, how it ended. Then both models run over the recorded tokens: the debt, what the rule
    gives at each budget, and by laws computed apart from the solvers every divergence, log p*,
    log p_s, the sum of divergences against the bound, and every token from its seed; what
    `with_divergences` added too. Tolerances follow from the models' dtypes: see `step_laws`.
    Not checked: stop strings, num_return_sequences, prior_bound, forwards beyond the least number.
    Raises LedgerError for a file that was touched or damaged; all else is in `failures`.
    """
    if not isinstance(ledger, Ledger):
        ledger = Ledger.load(ledger)
    bound = ledger.header.bound if ledger.certified is True else math.inf
    report = Verification(num_steps=len(ledger.steps), bound=bound)
    report.failures += inconsistencies(ledger, pair)
    if not (report.is_ok and ledger.steps):
        return report
    found = _replayed(Replay(ledger, pair), report)
    if found.is_ok:
        return found
    # Perhaps these models round more than most: twice the reading, only where it may matter.
    measured = _replayed(Replay(ledger, pair, measures_rounding=True), report)
    return measured if measured.is_ok else found


def _replayed(replay: Replay, report: Verification) -> Verification:
    """The report with what a replay finds."""
    found = replace(report, failures=_prompt_failures(replay))
    if found.is_ok:
        _check_steps(replay, found)
    return found


def _prompt_failures(replay: Replay) -> list[str]:
    header, reading = replay.ledger.header, replay.reading
    if error := reading.errors[0]:
        return [error]
    ratios = reading.ratios[0]
    debt = replay.rule.budget_for(horizon=header.horizon, k=None, ratios=ratios).debt
    debt = max(debt, header.least_debt or 0.0)
    failures = []
    if not difference(debt, header.debt) <= _ratio_tolerance(replay, min(debt, header.debt)):
        failures.append(f"debt {header.debt}, replayed {debt}")
    if header.prompt_ratios is not None:
        failures += _ratio_failures(replay, ratios.tolist(), header.prompt_ratios)
    return failures


def _ratio_tolerance(replay: Replay, nats: float) -> float:
    """Of a ratio of this size, nats: it is no larger than the logits that it comes from."""
    level, logits = replay.level, replay.reading.logits
    deviation = 0.0
    for name, model in level.pair.models.items():
        deviation += relative_deviation(model.dtype) * nats
        if name in logits:
            last = logit_deviation(logits[name][0].cpu().float(), model.dtype)
            deviation += level.symbols_per_token * last
    return NUM_DEVIATIONS * deviation


def _ratio_failures(replay: Replay, replayed: list[float], recorded: list[float]) -> list[str]:
    if len(replayed) != len(recorded):
        return [f"{len(recorded)} prompt ratios, replayed {len(replayed)}"]
    errors = [difference(*pair) for pair in zip(replayed, recorded, strict=True)]
    sizes = [min(map(abs, pair)) for pair in zip(replayed, recorded, strict=True)]
    shares = [
        error / _ratio_tolerance(replay, size) for error, size in zip(errors, sizes, strict=True)
    ]
    error = max(errors, default=0.0)
    is_off = not max(shares, default=0.0) <= 1.0
    return [f"prompt ratios differ by {error:.3g} nats"] if is_off else []


def _check_steps(replay: Replay, report: Verification) -> None:
    steps = []
    for forced, recorded in zip(replay.steps(), replay.ledger.steps, strict=True):
        if not forced.drawn.is_valid.item():
            report.failures.append(f"step {forced.step}: the replayed logits are no distribution")
            return
        steps.append(StepReplay(replay, forced, recorded).report())
        _count(steps[-1], recorded.step, report)
    _sum_up(replay.ledger, replay.rule, steps, report)


def _count(step: StepReport, number: int, report: Verification) -> None:
    failures = step.failures()
    report.failures += [f"step {number}: {failure}" for failure in failures]
    is_again = step.cost == 0.0 and not step.is_flipped
    report.tokens_drawn_again += is_again and not failures
    report.tokens_at_a_boundary += not is_again and not failures
    errors = {figure.name: figure.error for figure in step.figures}
    report.max_spend_error = max(report.max_spend_error, errors["spend by the rule"])
    report.max_log_prob_error = max(
        report.max_log_prob_error, errors["log_prob"], errors["safe_log_prob"]
    )


def _sum_up(ledger: Ledger, rule: Rule, steps: list[StepReport], report: Verification) -> None:
    """Errors of steps are independent: their sum grows with the root of their number."""
    report.boundary_cost = math.fsum(step.cost for step in steps)
    report.most_boundary_cost = MOST_COST + math.fsum(step.expected_cost for step in steps)
    if not report.boundary_cost <= report.most_boundary_cost:
        report.failures.append(
            f"{report.tokens_at_a_boundary} tokens at a boundary need rounding of "
            f"{report.boundary_cost:.3g}, {report.most_boundary_cost:.3g} is explained"
        )
    if not rule.is_certified:
        return
    deviation = math.hypot(*(step.divergence_deviation for step in steps))
    report.tolerance = NUM_DEVIATIONS * deviation
    report.divergence = math.fsum(step.divergence for step in steps)
    slack = math.fsum(step.slack for step in steps)  # of spends above it
    overspent = report.divergence - ledger.spent
    if not -(report.tolerance + slack) <= overspent <= report.tolerance:
        report.failures.append(f"divergence {report.divergence} nats, spent {ledger.spent}")
    bound = ledger.header.bound
    if not report.divergence <= bound + report.tolerance:
        report.failures.append(f"divergence {report.divergence} nats > bound {bound}")


def with_divergences(ledger: Ledger | Path | str, pair: ModelPair) -> Ledger:
    """The ledger with `kl_risky_safe` and `kl_star_risky` of every step, and its prompt's ratios.

    Both models run once more over the recorded tokens; `verify` then checks these figures too.
    Raises LedgerError, a ValueError, for a file that was touched, for other models than it names
    and for what does not hold together.
    Source: paper, figure of per-step divergences.
    """
    if not isinstance(ledger, Ledger):
        ledger = Ledger.load(ledger)
    if failures := inconsistencies(ledger, pair):
        raise LedgerError(failures[0])
    replay = Replay(ledger, pair, scores_prompt=True)
    if not replay.level.compares_models:
        raise LedgerError("both models have tokens of their own, so no divergence is known")
    steps = [
        replace(recorded, **step_divergences(forced))
        for forced, recorded in zip(replay.steps(), ledger.steps, strict=True)
    ]
    ratios = replay.reading.ratios[0].tolist()
    return replace(ledger, header=replace(ledger.header, prompt_ratios=ratios), steps=steps)


def step_divergences(forced: ForcedStep) -> dict[str, Any]:
    """Nats, by the fields of `LedgerStep`; infinite where a law has mass that the other lacks."""
    inputs = forced.inputs
    risky, safe = (oracle.law_of(inputs.warped(name)[0]) for name in ("risky", "safe"))
    star = forced.drawn.log_probs()[0].double()
    return {"kl_risky_safe": oracle.kl(risky, safe), "kl_star_risky": oracle.kl(star, risky)}
