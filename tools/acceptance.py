"""How often the safe model's draws are kept, beside what the laws say: 1 - TV(p*, p_s)."""

import math
from dataclasses import dataclass, field, fields

from torch import Tensor

from anchored import Anchored, Decoder, ModelPair
from anchored.decode.rules.rule import NextToken, StepInputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Acceptance:
    """Over the steps that could spend something."""

    num_steps: int
    observed: float
    """Share of tokens that are the safe model's own draw."""
    expected: float
    """Mean of 1 - TV(p*, p_s)."""
    error: float
    """Standard error of the observed share about the expected one."""


@dataclass(frozen=True, slots=True)
class _Watched(Anchored):
    """Anchored, which keeps 1 - TV of every step that has a budget."""

    kept: list[Tensor] = field(default_factory=list)

    def next_token(self, inputs: StepInputs) -> NextToken:
        drawn = Anchored.next_token(self, inputs)
        star = drawn.log_probs().double().exp()
        safe = inputs.warped("safe").double().softmax(-1)
        chances = star.minimum(safe).sum(-1)[inputs.budget > 0.0]
        self.kept.append(chances.cpu())
        return drawn


def measured_acceptance(
    pair: ModelPair, rule: Anchored, prompts: list[str | list[int]], num_tokens: int
) -> Acceptance:
    """Acceptance of plain decoding from these prompts, `num_tokens` each, at temperature 0.7."""
    settings = {f.name: getattr(rule, f.name) for f in fields(Anchored)}
    watched = _Watched(**settings)
    results = Decoder(pair, watched).generate(prompts, max_new_tokens=num_tokens)
    steps = [s for result in results for s in result.ledger.steps if s.budget > 0.0]
    chances = [chance for kept in watched.kept for chance in kept.tolist()]
    variance = sum(chance * (1.0 - chance) for chance in chances)
    count = max(len(steps), 1)
    return Acceptance(
        num_steps=len(steps),
        observed=sum(step.accepted for step in steps) / count,
        expected=math.fsum(chances) / count,
        error=math.sqrt(variance) / count,
    )
