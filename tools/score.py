"""Score a text: anchored score --safe A --risky B --prompt "To be" --continuation " or not" """

import json
from dataclasses import dataclass

from .model_options import is_first_process
from .pair_options import PairOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreConfig(PairOptions):
    """Prints one JSON object: log p* and what it spent, in nats."""

    prompt: str
    """Text that is given."""
    continuation: str
    """Text that is scored, teacher forced."""
    horizon: int | None = None
    """Tokens, or bytes, that K = k * horizon is spread over; the continuation's length unless
    given."""


def run(config: ScoreConfig) -> int:
    """Score and print; returns the exit status."""
    decoder = config.decoder()
    (score,) = decoder.score(config.prompt, config.continuation, horizon=config.horizon)
    if score.error:
        raise ValueError(score.error)
    figures = {
        "log_prob": score.log_prob,
        f"num_{decoder.level.name}s": len(score.token_ids),
        "is_greedy": score.is_greedy,
        "spend": score.spend,
        "bound": score.bound,
        "debt": score.debt,
        "k": score.k,
        "K": score.K,
    }
    if is_first_process():
        print(json.dumps(figures))
    return 0
