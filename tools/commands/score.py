"""The command that scores a given continuation."""

import json
from dataclasses import dataclass

from anchored import AnchoredError

from .files import json_nats
from .options import PairOptions, is_first_process


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreConfig(PairOptions):
    """Score a text: anchored score --safe A --risky B --prompt "To be" --continuation " or not"

    Prints one JSON object: log p* and what it spent, in nats.
    """

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
        raise AnchoredError(score.error)
    figures = {
        "log_prob": json_nats(score.log_prob),
        f"num_{decoder.level.name}s": len(score.token_ids),
        "is_greedy": score.is_greedy,
        "spend": json_nats(score.spend),
        "bound": json_nats(score.bound),
        "debt": json_nats(score.debt),
        "k": json_nats(score.k),
        "K": json_nats(score.K),
    }
    if is_first_process():
        print(json.dumps(figures))
    return 0
