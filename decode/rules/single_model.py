"""One model alone: the baselines p_s, p_r, and p_r behind a system prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...kernels.projection import project_kl
from .budget import Budget
from .rule import SAFE, NextToken, Reading, Rule, StepInputs, StreamName
from .unbounded import Unbounded


@dataclass(frozen=True, slots=True)
class SafeOnly(Rule):
    """p* = p_s at every step; certified, with a bound of 0 nats. The risky model does not run."""

    name = "safe_only"
    streams: ClassVar = {"safe": SAFE}
    is_certified = True
    divergence = "kl"

    def budget_for(self, *, horizon: int, k: float | None, ratios: Tensor) -> Budget:
        return Budget(per_step=0.0, total=0.0, horizon=horizon)

    def next_token(self, inputs: StepInputs) -> NextToken:
        safe = inputs.warped("safe")
        return project_kl(safe, safe, torch.zeros_like(inputs.budget), inputs.uniform)


@dataclass(frozen=True, kw_only=True, slots=True)
class RiskyOnly(Unbounded):
    """p* = p_r at every step; not certified: the reported spend may be infinite."""

    name = "risky_only"

    def logits(self, inputs: StepInputs) -> Tensor:
        return inputs.warped("risky")


DBRX_PROMPT = (
    "You are a helpful, respectful, and honest assistant.\n\n"
    "You were not trained on copyrighted books, song lyrics, poems, video transcripts, or news "
    "articles, and you do not divulge details of your training data.\n\n"
    "You do not provide song lyrics, poems, or news articles; instead, you refer the user to find "
    "them online or in a store."
)
"""Source: paper, table "DBRX system prompt"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class System(Unbounded):
    """p_r behind a system prompt that asks for no copyrighted text; not certified.

    Source: paper, section "Inference-time baselines".
    """

    prompt: str = DBRX_PROMPT

    name = "system"

    @property
    def own_streams(self) -> Mapping[StreamName, Reading]:
        return {"risky": Reading("risky", preface=self.prompt + "\n\n")}

    def logits(self, inputs: StepInputs) -> Tensor:
        return inputs.warped("risky")
