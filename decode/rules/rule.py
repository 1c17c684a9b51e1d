"""What a decoding rule sees and what it returns; sampling, caches and stopping are the engine's."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from .budget import Budget

StreamName = Literal["safe", "risky"]
"""One model's reading of the text."""

BOTH: tuple[StreamName, ...] = ("safe", "risky")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInputs:
    """What the models say of the next token, for a batch of rows."""

    logits: Mapping[str, Tensor]
    """By stream, of those that the rule reads at least: (batch, vocab_size), raw, any float dtype,
    all on one device."""
    warp: Callable[[Tensor], Tensor]
    """Raw logits to warped logits: penalties, temperature, truncation, one end symbol."""
    budget: Tensor
    """(batch,) float64, nats this step may spend."""
    uniform: Tensor | None
    """(batch, 3) float64 in [0, 1) for the coupled sampler; None draws nothing."""

    def warped(self, name: StreamName) -> Tensor:
        """(batch, vocab_size) warped logits of one stream."""
        return self.warp(self.logits[name])


class NextToken(Protocol):
    """A distribution p* over the next token of every row, and the token drawn from it."""

    @property
    def weight(self) -> Tensor: ...  # (batch,) float64
    @property
    def spend(self) -> Tensor: ...  # (batch,) float64 nats
    @property
    def is_valid(self) -> Tensor: ...  # (batch,) bool
    @property
    def token_ids(self) -> Tensor | None: ...  # (batch,) int64
    @property
    def accepted(self) -> Tensor | None: ...  # (batch,) bool
    @property
    def stored_log_probs(self) -> tuple[Tensor, Tensor] | None:
        """log p* and log p_s of `token_ids`, (batch,) float64 each, if drawing has found them."""
        ...

    def log_probs(self) -> Tensor: ...  # (batch, vocab_size)
    def token_log_probs(self, token_ids: Tensor) -> Tensor: ...  # (batch,) float64
    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token per row, (batch,) float64; NaN where the safe model is not read."""
        ...


class Rule(Protocol):
    """A decoding rule: a frozen object without state of its own."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> Sequence[StreamName]:
        """What `next_token` reads; no other model runs."""
        ...

    @property
    def is_certified(self) -> bool:
        """Whether the spends that the rule reports bound the divergence from the safe model."""
        ...

    @property
    def charges_debt(self) -> bool:
        """Whether `budget_for` asks for ratios; without them prompts cost less to read."""
        ...

    def settings(self) -> dict[str, Any]:
        """Plain JSON values from which `registry.make_rule` makes the rule again."""
        ...

    def budget_for(self, *, horizon: int, k: float | None, ratios: Tensor) -> Budget:
        """The budget of one request.

        horizon: most steps. k: nats a step in place of the rule's own, in [0, BUDGET_CAP].
        ratios: (num_positions,) float64 log-likelihood ratios of the prompt's tokens. Raises
        ValueError where k * horizon is beyond BUDGET_CAP, a ratio is NaN, or k is given to a rule
        that was made from K.
        """
        ...

    def next_token(self, inputs: StepInputs) -> NextToken:
        """p* of this step for every row, with the token drawn from it where uniforms are given."""
        ...
