"""A package outside of anchored: a certified rule, and a metric of copying."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from anchored.decode.rules.anchored import Budgeted
from anchored.decode.rules.rule import Divergence, NextToken, OpenRule, StepInputs, Symbols
from anchored.decode.rules.unbounded import Categorical
from anchored.kernels.spend import SPEND_QUANTUM, ceil_to_quantum


@dataclass(frozen=True, slots=True)
class Blend(Budgeted):
    """(1 - w) p_s + w p_r, with the largest w whose divergence from p_s the budget allows;
    certified.

    A step spends that divergence, KL or the largest log-ratio, rounded up, and never more than its
    budget.
    """

    halvings: int = 40
    """Steps of the search for w."""

    name = "blend"
    divergences: ClassVar[tuple[Divergence, ...]] = ("kl", "max")

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self.blended)

    def blended(self, inputs: StepInputs) -> NextToken:
        safe, risky = inputs.warped("safe"), inputs.warped("risky")
        # Where nothing may be spent, the risky model may not have run.
        risky = torch.where(inputs.budget[:, None] > 0.0, risky, safe)
        log_s, log_r = (logits.double().log_softmax(-1) for logits in (safe, risky))

        def blend(w: Tensor) -> tuple[Tensor, Tensor]:
            """The mixture of this weight and its spend, NaN or inf where p_s lacks a token."""
            mix = torch.logaddexp(log_s + torch.log1p(-w[:, None]), log_r + w.log()[:, None])
            ratios = torch.where(mix > -torch.inf, mix - log_s, 0.0)
            is_kl = self.divergence == "kl"
            spent = (mix.exp() * ratios).sum(-1) if is_kl else ratios.amax(-1)
            nats = ceil_to_quantum(spent) + SPEND_QUANTUM
            return mix, torch.where(w > 0.0, nats, 0.0)

        low, high = torch.zeros_like(inputs.budget), torch.ones_like(inputs.budget)
        for _ in range(self.halvings):
            middle = (low + high) / 2
            is_allowed = blend(middle)[1] <= inputs.budget
            low, high = torch.where(is_allowed, middle, low), torch.where(is_allowed, high, middle)
        mix, nats = blend(low)
        return replace(Categorical.draw(mix, safe, inputs.uniform), spend=nats)


def copied_share(hypothesis: str, reference: str) -> float:
    """Share of the generation's words that the reference has too."""
    words, known = hypothesis.split(), set(reference.split())
    return sum(word in known for word in words) / len(words) if words else 0.0
