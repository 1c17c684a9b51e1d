"""Replay of a ledger against the models: every figure checked, every token drawn again."""

import itertools
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..kernels.sampler import coupled_sample
from .budget import Budget
from .divergences import recorded_divergences, step_divergences
from .ledger import Ledger, LedgerStep
from .ledger_replay import open_replay
from .level import Level
from .level_registry import recorded_level
from .model_pair import ModelPair
from .prompt_reading import asks_for_ratios
from .replay import ForcedStep
from .rules.registry import make_rule
from .rules.rule import Rule

TOLERANCE_NATS = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.bfloat16: 0.1,
    torch.float16: 0.02,
}
"""Largest difference per step that another batch shape of the same dtype explains."""


@dataclass(kw_only=True, slots=True)
class Verification:
    """The outcome of a replay; `failures` is empty exactly when the ledger stands."""

    tolerance: float
    """Nats per step within which recorded and replayed figures must agree."""
    num_steps: int = 0
    tokens_drawn_again: int = 0
    """Tokens that the seed gives again, exactly."""
    tokens_at_a_boundary: int = 0
    """Tokens given again only by a uniform moved by the tolerance: rounding at a CDF boundary."""
    max_spend_error: float = 0.0
    max_log_prob_error: float = 0.0
    failures: list[str] = field(default_factory=list)

    @property
    def is_ok(self) -> bool:
        return not self.failures

    def __str__(self) -> str:
        verdict = "verified" if self.is_ok else f"REFUSED: {self.failures[0]}"
        return (
            f"{verdict}: {self.num_steps} steps, {self.tokens_drawn_again} tokens drawn again "
            f"(+{self.tokens_at_a_boundary} at a boundary), largest difference "
            f"spend {self.max_spend_error:.1e}, log p {self.max_log_prob_error:.1e} nats "
            f"(tolerance {self.tolerance:.0e})"
        )


def verify(ledger: Ledger | Path | str, pair: ModelPair) -> Verification:
    """Check a ledger against the models that it names.

    Checked: model fingerprints; level and tokenizers; debt; that each allowance follows from the
    spends before it; that spends stay within allowances and their sum within the bound; and, by
    running both models over the recorded tokens, every spend, log p* and log p_s, every token
    from its seed, and what `with_divergences` added. Raises LedgerError for a file that was
    touched; all else is in `failures`.
    """
    if not isinstance(ledger, Ledger):
        ledger = Ledger.load(Path(ledger))
    report = Verification(tolerance=TOLERANCE_NATS[pair.dtype], num_steps=len(ledger.steps))
    rule = make_rule(ledger.header.rule, ledger.header.rule_settings)
    _check_models(ledger, pair, report)
    _check_accounting(ledger, report)
    level = _recorded_level(ledger, pair, report)
    if level is not None and report.is_ok:
        _replay(ledger, level, rule, report)
    return report


def _recorded_level(ledger: Ledger, pair: ModelPair, report: Verification) -> Level | None:
    """None, with a failure, if the pair cannot be decoded as the ledger says."""
    header = ledger.header
    try:
        level = recorded_level(pair, header.level, header.level_settings)
    except ValueError as error:
        report.failures.append(str(error))
        return None
    if level.stop_token_ids != header.stop_token_ids:
        report.failures.append(
            f"stop tokens are {level.stop_token_ids}, recorded {header.stop_token_ids}"
        )
    return level


def _check_models(ledger: Ledger, pair: ModelPair, report: Verification) -> None:
    for name, recorded in ledger.header.fingerprints.items():
        if pair.fingerprints[name] != recorded:
            report.failures.append(
                f"the {name} model is not the recorded one "
                f"({pair.fingerprints[name][:12]}, recorded {recorded[:12]})"
            )
    if pair.quantization != ledger.header.quantization:
        report.failures.append(
            f"quantised are {pair.quantization}, recorded {ledger.header.quantization}"
        )


def _check_accounting(ledger: Ledger, report: Verification) -> None:
    budget, spent = _recorded_budget(ledger), 0.0
    if budget.bound != ledger.header.bound:
        report.failures.append(f"bound {ledger.header.bound} does not follow from K and debt")
    for step in ledger.steps:
        if step.budget != budget.allowance(step.step, spent):
            report.failures.append(f"step {step.step}: the budget does not follow from the spends")
        if ledger.certified and step.spend > step.budget:
            report.failures.append(f"step {step.step}: spend {step.spend} > budget {step.budget}")
        spent += step.spend
    if ledger.certified and not ledger.is_within_bound:
        report.failures.append(f"spent {ledger.spent} > bound {ledger.header.bound}")


def _recorded_budget(ledger: Ledger) -> Budget:
    header = ledger.header
    return Budget(
        per_step=header.k,
        total=header.K,
        horizon=header.horizon,
        debt=header.debt,
        schedule=header.rule_settings.get("budget", "adaptive"),
    )


def _replay(ledger: Ledger, level: Level, rule: Rule, report: Verification) -> None:
    header = ledger.header
    scores_prompt = asks_for_ratios(level, rule) or header.prompt_ratios is not None
    replay = open_replay(ledger, level, rule, scores_prompt=scores_prompt)
    ratios = replay.reading.ratios[0]
    debt = rule.budget_for(horizon=header.horizon, k=None, ratios=ratios).debt
    if _difference(debt, header.debt) > report.tolerance:
        report.failures.append(f"debt {header.debt}, replayed {debt}")
    if header.prompt_ratios is not None:
        _check_ratios(ratios.tolist(), header.prompt_ratios, report)
    for forced in replay.recorded_steps(ledger):
        _check_step(forced, ledger.steps[forced.step], report)


def _check_ratios(replayed: list[float], recorded: list[float], report: Verification) -> None:
    if len(replayed) != len(recorded):
        report.failures.append(f"{len(recorded)} prompt ratios, replayed {len(replayed)}")
        return
    errors = [_difference(*pair) for pair in zip(replayed, recorded, strict=True)]
    if max(errors, default=0.0) > report.tolerance:
        report.failures.append(f"prompt ratios differ by {max(errors):.3g} nats")


def _check_step(forced: ForcedStep, recorded: LedgerStep, report: Verification) -> None:
    drawn, token_ids = forced.drawn, forced.token_ids
    if not drawn.is_valid.item():
        report.failures.append(f"step {recorded.step}: the replayed logits are no distribution")
        return
    log_probs = drawn.token_log_probs(token_ids).item()
    safe_log_probs = drawn.safe_token_log_probs(token_ids).item()
    errors = {
        "spend": _difference(drawn.spend.item(), recorded.spend),
        "log_prob": _difference(log_probs, recorded.log_prob),
        "safe_log_prob": _difference(safe_log_probs, recorded.safe_log_prob),
    }
    if recorded_divergences(recorded):
        again = step_divergences(forced)
        known = recorded_divergences(recorded).items()
        errors |= {name: _difference(again[name], nats) for name, nats in known}
    report.max_spend_error = max(report.max_spend_error, errors["spend"])
    report.max_log_prob_error = max(
        report.max_log_prob_error, errors["log_prob"], errors["safe_log_prob"]
    )
    for name, error in errors.items():
        if error > report.tolerance:
            report.failures.append(f"step {recorded.step}: {name} differs by {error:.3g} nats")
    _check_token(forced, recorded, report)


def _check_token(forced: ForcedStep, recorded: LedgerStep, report: Verification) -> None:
    drawn = forced.drawn
    if drawn.token_ids is None or drawn.accepted is None:
        again = _is_most_likely(forced, report.tolerance)
        report.tokens_drawn_again += again
    else:
        again = drawn.token_ids.item() == recorded.token_id
        again = again and bool(drawn.accepted.item()) == recorded.accepted
        report.tokens_drawn_again += again
        if not again and _is_at_boundary(forced, recorded, report.tolerance):
            report.tokens_at_a_boundary += 1
            return
    if not again:
        report.failures.append(f"step {recorded.step}: the seed gives another token")


def _is_most_likely(forced: ForcedStep, tolerance: float) -> bool:
    best = forced.drawn.log_probs().amax(-1).item()
    return best - forced.drawn.token_log_probs(forced.token_ids).item() <= tolerance


def _is_at_boundary(forced: ForcedStep, recorded: LedgerStep, tolerance: float) -> bool:
    """Whether uniforms within the tolerance give the recorded token."""
    inputs, star = forced.inputs, forced.drawn.log_probs().double()
    safe = inputs.warp(inputs.safe_logits).double().log_softmax(-1)
    assert inputs.uniform is not None
    for shift in itertools.product((-tolerance, 0.0, tolerance), repeat=3):
        moved = inputs.uniform + torch.tensor([shift], dtype=torch.float64)
        token_ids, accepted = coupled_sample(safe, star, moved.clamp(0.0, 1.0 - 2**-53))
        if (token_ids.item(), bool(accepted.item())) == (recorded.token_id, recorded.accepted):
            return True
    return False


def _difference(left: float, right: float) -> float:
    return 0.0 if left == right else abs(left - right)
