"""How far apart the models and p* were at every step of a ledger: figures that cost a replay."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from ..ledger import Ledger, LedgerError, LedgerStep
from ..models.model_pair import ModelPair
from ..rules.registry import make_rule
from . import oracle
from .consistency import inconsistencies
from .replay import ForcedStep, open_replay, recorded_level


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
    header = ledger.header
    level = recorded_level(pair, header.level, header.level_settings)
    rule = make_rule(header.rule, header.rule_settings)
    replay = open_replay(ledger, level, rule, scores_prompt=True)
    steps = [
        replace(recorded, **step_divergences(forced))
        for forced, recorded in zip(replay.recorded_steps(ledger), ledger.steps, strict=True)
    ]
    ratios = replay.reading.ratios[0].tolist()
    return replace(ledger, header=replace(header, prompt_ratios=ratios), steps=steps)


def step_divergences(forced: ForcedStep) -> dict[str, Any]:
    """Nats, by the fields of `LedgerStep`; infinite where a law has mass that the other lacks."""
    inputs = forced.inputs
    risky, safe = (oracle.law_of(inputs.warped(name)[0]) for name in ("risky", "safe"))
    star = forced.drawn.log_probs()[0].double()
    return {"kl_risky_safe": oracle.kl(risky, safe), "kl_star_risky": oracle.kl(star, risky)}


def recorded_divergences(step: LedgerStep) -> dict[str, float]:
    """Those that a step holds."""
    figures = {"kl_risky_safe": step.kl_risky_safe, "kl_star_risky": step.kl_star_risky}
    return {name: nats for name, nats in figures.items() if nats is not None}
