"""One model at a time: p_s, p_r, p_r after a system prompt, and switches from one to the other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...fields import checked_nats
from ...kernels.project import project_kl
from .budget import Budget
from .rule import (
    BOTH,
    SAFE,
    NextToken,
    OpenRule,
    Rule,
    StepInputs,
    StreamName,
    StreamSpec,
    Symbols,
)
from .unbounded import Unbounded


@dataclass(frozen=True, slots=True)
class SafeOnly(Rule):
    """p* = p_s at every step; certified, with a bound of 0 nats. The risky model does not run."""

    name = "safe_only"
    streams: ClassVar = {"safe": SAFE}
    is_certified = True
    is_projection = True
    divergence = "kl"

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        return Budget(per_step=0.0, total=0.0, horizon=horizon)

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self._project)

    def _project(self, inputs: StepInputs) -> NextToken:
        safe = inputs.warped("safe")
        return project_kl(safe, safe, torch.zeros_like(inputs.budget), inputs.uniform)


@dataclass(frozen=True, kw_only=True, slots=True)
class RiskyOnly(Unbounded):
    """p* = p_r at every step; not certified: the reported spend may be infinite."""

    name = "risky_only"

    def open(self, level: Symbols) -> OpenRule:
        return self.drawing(lambda inputs: inputs.warped("risky"))


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
    """p_r after a system prompt that asks for no copyrighted text; not certified.

    Source: paper, section "Inference-time baselines".
    """

    prompt: str = DBRX_PROMPT

    name = "system"

    @property
    def reads(self) -> Mapping[StreamName, StreamSpec]:
        return {"risky": StreamSpec("risky", preface=self.prompt + "\n\n")}

    def open(self, level: Symbols) -> OpenRule:
        return self.drawing(lambda inputs: inputs.warped("risky"))


COLD_STEPS_PER_NAT = 10
"""Source: paper, section "Ablations"."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ColdStart(Unbounded):
    """p_s for the first round(10 k) steps, p_r from then on; not certified.

    Source: paper, section "Ablations".
    """

    k: float
    """Nats per step of the Anchored rule that it is compared with."""

    name = "cold_start"
    reads = BOTH
    looks_back = True

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        checked_nats("k", self.k)

    def open(self, level: Symbols) -> OpenRule:
        return self.drawing(self._logits)

    def _logits(self, inputs: StepInputs) -> Tensor:
        assert inputs.past is not None
        risky, safe = inputs.warped("risky"), inputs.warped("safe")
        steps = torch.tensor([len(text) for text in inputs.past.texts], device=safe.device)
        is_cold = steps < round(COLD_STEPS_PER_NAT * self.k)
        return torch.where(is_cold[:, None], safe, risky)


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalSwitch(Unbounded):
    """p_r until the spends reach K, p_s from then on: the last risky step may exceed K, so it is
    not certified.

    What the paper runs as "Global"; `Anchored(budget="global")` projects onto what is left instead.
    """

    K: float
    """Nats."""

    name = "global_switch"
    reads = BOTH

    def __post_init__(self) -> None:
        Unbounded.__post_init__(self)
        checked_nats("K", self.K)

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        """K for the whole text, or k * horizon where a call gives k."""
        total = self.K if k is None else checked_nats("K = k * horizon", k * horizon)
        return Budget(per_step=total / horizon, total=total, horizon=horizon, schedule="global")

    def open(self, level: Symbols) -> OpenRule:
        return self.drawing(self._logits)

    def _logits(self, inputs: StepInputs) -> Tensor:
        is_left = inputs.budget[:, None] > 0.0
        return torch.where(is_left, inputs.warped("risky"), inputs.warped("safe"))
