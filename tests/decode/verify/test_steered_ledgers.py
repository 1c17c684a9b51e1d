"""Tokens chosen among those that rounding may give, for what they are worth to a forger."""

import math
from dataclasses import dataclass, replace

import pytest
import torch
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, ModelPair, Pathwise, verify
from anchored.decode.rules.rule import NextToken, OpenRule, StepInputs, token_spend
from anchored.decode.verify.draw import Draw
from anchored.decode.verify.rounding import logit_tolerance
from anchored.decode.warpers import largest_logit

PROMPTS = ["the", "keeper of the lamp wro", "eeper of the lamp wrote every wave into a"]


class Steering:
    """Takes, of the tokens that rounding may give, the one that is most the risky model's."""

    def settings(self):
        return {name: value for name, value in super().settings().items() if name != "most"}

    def open(self, level) -> OpenRule:
        opened = super().open(level)
        return replace(opened, next_token=lambda inputs: self.steered(opened, inputs))

    def steered(self, opened: OpenRule, inputs: StepInputs) -> NextToken:
        drawn = opened.next_token(inputs)
        rows = zip(*map(inputs.warped, ("safe", "risky")), drawn.log_probs(), strict=True)
        token_ids = [self._chosen(*row, inputs.uniform[at].tolist()) for at, row in enumerate(rows)]
        is_draft = torch.tensor([is_draft for _, is_draft in token_ids])
        token_ids = torch.tensor([token_id for token_id, _ in token_ids])
        chosen = {
            "token_ids": token_ids,
            "accepted": torch.where(token_ids == drawn.token_ids, drawn.accepted, is_draft),
            "spend": token_spend(drawn, token_ids),
        }
        return replace(drawn, **chosen, stored_log_probs=None)

    def _chosen(self, safe, risky, star, uniform: list[float]) -> tuple[int, bool]:
        """A token, and whether it is the safe model's draft."""
        tolerance = logit_tolerance(largest_logit(safe).item(), torch.bfloat16)
        draw = Draw(
            uniform=(uniform[0], uniform[1], uniform[2]),
            safe=safe.double().log_softmax(-1),
            star=star.double(),
            safe_tolerance=tolerance,
            star_tolerance=torch.full_like(star.double(), 0.7 * tolerance),
            ratio_tolerance=torch.full_like(star.double(), 0.7 * tolerance),
        )
        needed = torch.stack([draw.needed(accepted=False), draw.needed(accepted=True)])
        ratios = risky.double().log_softmax(-1) - draw.safe
        least, is_draft = needed.min(0)
        best = int(ratios.masked_fill((least > self.most) & (least > 0.0), -math.inf).argmax())
        return best, bool(is_draft[best])


@dataclass(frozen=True)
class SteeredMean(Steering, Anchored):
    most: float = 0.5
    """Tolerances that a draw may need."""


@dataclass(frozen=True)
class SteeredDrawn(Steering, Pathwise):
    most: float = 0.5
    """The same."""


@pytest.fixture(scope="module")
def pair(tokenizer) -> ModelPair:
    models = tiny_llama(1).bfloat16(), tiny_llama(2, layers=3).bfloat16()
    return ModelPair(*models, tokenizer)


GAIN, COUNT = "nats of log p_r/p_s", "tokens follow only"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "most", "why"),
    [
        *((SteeredMean, 0.05, GAIN), (SteeredMean, 0.4, COUNT)),
        *((SteeredDrawn, 0.4, GAIN), (SteeredDrawn, 0.05, GAIN)),
    ],
)
def test_ledgers_steered_within_the_tolerance_of_each_draw_are_refused(pair, kind, most, why):
    rule = kind(k=0.5, debt="none", most=most)
    settings = {"max_new_tokens": 60, "temperature": 0.7, "repetition_penalty": 1.0}
    for result in Decoder(pair, rule).generate(PROMPTS, seed=[0, 1, 2], **settings):
        report = verify(result, pair)
        assert any(why in failure for failure in report.failures), report
