"""How far apart the models and p* were at every step of a ledger: figures that cost a replay."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from .ledger import Ledger, LedgerStep
from .ledger_replay import open_replay
from .level_registry import recorded_level
from .model_pair import ModelPair
from .replay import ForcedStep
from .rules.registry import make_rule


def with_divergences(ledger: Ledger | Path | str, pair: ModelPair) -> Ledger:
    """The ledger with `kl_risky_safe` and `kl_star_risky` of every step, and its prompt's ratios.

    Both models run once more over the recorded tokens; `verify` then checks these figures too.
    Raises LedgerError for a file that was touched, ValueError for other models than it names.
    Source: paper, figure of per-step divergences.
    """
    if not isinstance(ledger, Ledger):
        ledger = Ledger.load(Path(ledger))
    header = ledger.header
    if pair.fingerprints != header.fingerprints:
        raise ValueError("the ledger was written with other models than these")
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
    risky, safe = (
        inputs.warp(logits)[:1].double().log_softmax(-1)
        for logits in (inputs.risky_logits, inputs.safe_logits)
    )
    star = forced.drawn.log_probs()[:1].double()
    return {
        "kl_risky_safe": _divergence(risky, safe),
        "kl_star_risky": _divergence(star, risky),
    }


def recorded_divergences(step: LedgerStep) -> dict[str, float]:
    """Those that a step holds."""
    figures = {"kl_risky_safe": step.kl_risky_safe, "kl_star_risky": step.kl_star_risky}
    return {name: nats for name, nats in figures.items() if nats is not None}


def _divergence(left: Tensor, right: Tensor) -> float:
    """KL(left || right) of log-probabilities (1, V)."""
    probs = left.exp()
    terms = (probs * (left - right)).where(probs > 0.0, 0.0)
    return max(0.0, terms.sum().item())
