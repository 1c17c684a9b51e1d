"""Rules without a budget: one model, or a switch between both. They certify nothing."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...fields import check_fields, checked_nats
from ...kernels.sampler import coupled_sample
from .budget import Budget
from .rule import (
    BOTH,
    RISKY,
    SAFE,
    NextToken,
    OpenRule,
    Rule,
    StepInputs,
    StreamName,
    StreamSpec,
    Symbols,
)

Logits = Callable[[StepInputs], Tensor]
"""(batch, vocab_size) warped logits of p*."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unbounded(Rule):
    """A rule without a budget: p* proportional to exp(logits), whatever that spends; not certified.

    Subclasses say which streams these logits are of (`reads`), and `open` as `drawing` them.
    """

    compared: bool = True
    """Run the safe model with it, to report what p* spends and to draw by the coupled sampler, as
    near to the safe model's text as p* allows. Without it every spend is infinite."""

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def reads(self) -> Mapping[StreamName, StreamSpec]:
        """The streams that the logits are computed from."""
        return {"risky": RISKY}

    @property
    def streams(self) -> Mapping[StreamName, StreamSpec]:
        return {"safe": SAFE, **self.reads} if self.compared else self.reads

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        # Fixed: an allowance that an infinite spend used up would let the risky model rest.
        return Budget(per_step=math.inf, total=math.inf, horizon=horizon, schedule="fixed")

    def drawing(
        self,
        logits: Logits,
        *,
        streams: Mapping[StreamName, StreamSpec] | None = None,
        used_words: Mapping[str, list[str]] | None = None,
    ) -> OpenRule:
        """The rule at a level where these are its logits; see `OpenRule`."""
        is_compared = "safe" in (self.streams if streams is None else streams)

        def next_token(inputs: StepInputs) -> NextToken:
            safe = inputs.warped("safe") if is_compared else None
            return Categorical.draw(logits(inputs), safe, inputs.uniform)

        return OpenRule.of(self, next_token, streams=streams, used_words=used_words)


@dataclass(frozen=True, slots=True)
class Categorical:
    """p* proportional to exp(logits), for rules that project nothing."""

    star: Tensor
    """(batch, vocab_size) float64 log p*."""
    safe: Tensor | None
    """(batch, vocab_size) float64 log p_s; None where the safe model is not read."""
    weight: Tensor
    spend: Tensor
    """KL(p*||p_s) in float64 nats, infinite where p* leaves the safe model's support, or where that
    is not known."""
    is_valid: Tensor
    token_ids: Tensor | None
    accepted: Tensor | None
    stored_log_probs: None = None

    @classmethod
    def draw(
        cls, logits: Tensor, safe_logits: Tensor | None, uniform: Tensor | None
    ) -> "Categorical":
        """Normalize logits (batch, vocab_size), and draw next to the safe model's where asked.

        Without the safe model p* is its own draft, by the first uniform; none is accepted then.
        """
        is_valid = _is_distribution(logits)
        if safe_logits is not None:
            is_valid = is_valid & _is_distribution(safe_logits)
        star = _log_probs(logits, is_valid)
        safe = None if safe_logits is None else _log_probs(safe_logits, is_valid)
        spend = torch.full_like(star[:, 0], math.inf) if safe is None else _divergence(star, safe)
        token_ids = accepted = None
        if uniform is not None:
            token_ids, accepted = coupled_sample(star if safe is None else safe, star, uniform)
            token_ids = token_ids.masked_fill(~is_valid, -1)
            accepted = accepted if safe is not None else torch.zeros_like(accepted)
        return cls(star, safe, torch.ones_like(spend), spend, is_valid, token_ids, accepted)

    def log_probs(self) -> Tensor:
        """log p* (batch, vocab_size) float64, normalized."""
        return self.star

    def token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p* of one token per row, (batch,) float64."""
        return self.star.gather(-1, token_ids[:, None])[:, 0]

    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token per row, (batch,) float64; NaN where it is not known."""
        if self.safe is None:
            return torch.full_like(self.spend, math.nan)
        return self.safe.gather(-1, token_ids[:, None])[:, 0]


def _is_distribution(logits: Tensor) -> Tensor:
    largest = logits.amax(-1)  # nan if any entry is
    return torch.isfinite(largest)


def _log_probs(logits: Tensor, is_valid: Tensor) -> Tensor:
    return torch.where(is_valid[:, None], logits.double(), 0.0).log_softmax(-1)


def _divergence(star: Tensor, safe: Tensor) -> Tensor:
    """KL in nats; a mass too small for a number is one all the same where p_s has none."""
    has_mass = star > -torch.inf
    terms = torch.where(has_mass, star.exp() * (star - safe), 0.0)
    return terms.masked_fill(has_mass & (safe == -torch.inf), torch.inf).sum(-1).clamp(min=0.0)


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
