"""What a decoding rule sees and what it returns; sampling, caches and stopping are the engine's."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol, Self, cast

import torch
from torch import Tensor

from .budget import Budget

logger = logging.getLogger(__name__)

ModelName = Literal["safe", "risky"]

Divergence = Literal["kl", "max"]
"""KL(p* || p_s), or the largest log-ratio of both."""

StreamName = str
"""Names one prompt that one model reads: "safe", "risky", or a name that the rule gives."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """Which model reads, and what stands before the prompt there."""

    model: ModelName
    preface: str = ""
    """A text, the same for all requests."""
    takes_passage: bool = False
    """The request's own passage stands before the prompt."""


SAFE, RISKY = StreamSpec("safe"), StreamSpec("risky")

BOTH: Mapping[StreamName, StreamSpec] = {"safe": SAFE, "risky": RISKY}


class Symbols(Protocol):
    """The symbols that a level decodes in, as far as rules that know words ask."""

    @property
    def name(self) -> str: ...  # "token" or "byte"
    @property
    def vocab_size(self) -> int: ...
    @property
    def symbols_per_token(self) -> int: ...
    @property
    def compares_models(self) -> bool: ...
    def encode_continuation(self, text: str) -> list[int]: ...
    def symbol_of(self, text: str) -> int | None: ...
    def encoding(self) -> tuple[str, ...]: ...


@dataclass(frozen=True, slots=True)
class Past:
    """The texts that a batch of rows has generated before this step, for rules that look back."""

    texts: Sequence[Sequence[int]]
    """The symbols by row, without the prompt."""
    log_probs: Mapping[StreamName, Tensor]
    """Nats by stream: (batch,) float64, log p(symbols | prompt) under its raw logits."""

    def of(self, rows: Sequence[int]) -> "Past":
        """The past of some of the rows, in this order."""
        log_probs = {name: own[list(rows)] for name, own in self.log_probs.items()}
        return Past([self.texts[row] for row in rows], log_probs)


class PastRows:
    """The texts that each row of a batch has generated so far, kept step by step."""

    def __init__(self, num_rows: int, names: Iterable[StreamName]) -> None:
        self._texts: list[list[int]] = [[] for _ in range(num_rows)]
        self._log_probs = {name: torch.zeros(num_rows, dtype=torch.float64) for name in names}

    def begin(self, row: int) -> None:
        """A new text begins in a row."""
        self._texts[row] = []
        for log_probs in self._log_probs.values():
            log_probs[row] = 0.0

    def of(self, rows: Sequence[int]) -> Past:
        """As rules see it, on the CPU."""
        return Past(
            texts=[list(self._texts[row]) for row in rows],
            log_probs={name: own[list(rows)] for name, own in self._log_probs.items()},
        )

    def append(
        self, rows: Sequence[int], logits: Mapping[StreamName, Tensor], token_ids: Sequence[int]
    ) -> None:
        """The next token of these rows, by the raw logits (rows, vocab_size) it was drawn from."""
        index = torch.tensor(token_ids)[:, None]
        for name, own in self._log_probs.items():
            log_probs = logits[name].double().log_softmax(-1)
            own[list(rows)] += log_probs.gather(1, index.to(log_probs.device))[:, 0].cpu()
        for row, token_id in zip(rows, token_ids, strict=True):
            self._texts[row].append(token_id)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepInputs:
    """Both models' predictions of the next token, for a batch of rows."""

    logits: Mapping[str, Tensor]
    """Raw logits by stream, of those at least that the rule reads: (batch, vocab_size), any dtype,
    all on one device."""
    warp: Callable[[Tensor], Tensor]
    """Raw logits to warped logits: penalties, temperature, truncation, one end symbol."""
    budget: Tensor
    """(batch,) float64, nats this step may spend."""
    uniform: Tensor | None
    """(batch, 3) float64 in [0, 1) for the coupled sampler; None draws nothing."""
    past: Past | None = None
    """Given to rules that look back."""

    def warped(self, name: StreamName) -> Tensor:
        """(batch, vocab_size) warped logits of one stream."""
        return self.warp(self.logits[name])


class NextToken(Protocol):
    """A distribution p* over the next token of every row, and the token drawn from it."""

    @property
    def weight(self) -> Tensor: ...  # (batch,) float64, 1 where nothing is projected
    @property
    def spend(self) -> Tensor: ...  # (batch,) float64 nats, by `ceil_to_quantum` if certified
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
    """A decoding rule: a frozen object without state of its own. Rules may derive from this."""

    @property
    def name(self) -> str: ...

    @property
    def streams(self) -> Mapping[StreamName, StreamSpec]:
        """The streams that `next_token` reads; no other model runs."""
        return BOTH

    @property
    def looks_back(self) -> bool:
        """Whether `next_token` reads `inputs.past`: p* then depends on more than logits and budget,
        so nothing is drafted and no step stays on a device."""
        return False

    @property
    def is_certified(self) -> bool:
        """Whether the spends that the rule reports bound the divergence from the safe model."""
        return False

    @property
    def divergence(self) -> Divergence | None:
        """The divergence that a certified rule's spends bound; None where they bound nothing."""
        return None

    @property
    def is_projection(self) -> bool:
        """Whether p* is p_r projected onto the budget, tilted ("kl") or clipped ("max"), so that
        `verify` computes it from the recorded figures alone. Of any other rule it takes p* from
        `next_token`, and computes KL(p* || p_s) and the draw itself."""
        return False

    @property
    def gain(self) -> float:
        """How many times an error of the logits may stand in those of p*: 1 where p* follows from
        warped logits, more where raw ones are mixed."""
        return 1.0

    @property
    def charges_debt(self) -> bool:
        """Whether prompts owe a debt; without one they cost less to read."""
        return False

    @property
    def retokenizes(self) -> bool:
        """Whether it decodes the risky model's tokens where the safe one has others."""
        return False

    @property
    def used_words(self) -> Mapping[str, list[str]] | None:
        """The words that a rule swaps at its level: those "swapped" and those "left_out", which are
        no single symbol there."""
        return None

    def for_symbols(self, symbols: Symbols) -> Self:
        """The rule for texts of these symbols; itself, unless it knows words.

        Raises ValueError for a level at which it cannot decode.
        """
        return self

    def settings(self) -> dict[str, Any]:
        """Plain JSON values from which `registry.make_rule` makes the rule again: its fields."""
        return {own.name: getattr(self, own.name) for own in fields(cast(Any, self)) if own.init}

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        """The budget of one request, before its prompt was read: without a debt.

        horizon: most steps. k: nats a step in place of the rule's k, in [0, BUDGET_CAP]. Raises
        ValueError where k * horizon is beyond BUDGET_CAP, or k is given to a rule that was made
        from K.
        """
        ...

    def debt_for(self, ratios: Tensor) -> float:
        """Nats that a prompt owes.

        ratios: (num_positions,) float64 log-likelihood ratios of its tokens. Raises ValueError
        where one is NaN.
        """
        return 0.0

    def next_token(self, inputs: StepInputs) -> NextToken:
        """p* of this step for every row, with the token drawn from it where uniforms are given."""
        ...


def takes_passage(rule: Rule) -> bool:
    """Whether one of its streams reads a passage before each prompt."""
    return any(reading.takes_passage for reading in rule.streams.values())


def opened(rule: Rule, symbols: Symbols) -> Rule:
    """The rule for texts of these symbols; one line is logged of words that it leaves out there.

    Raises ValueError for a level at which it cannot decode.
    """
    own = rule.for_symbols(symbols)
    if own.used_words is not None and (left_out := own.used_words["left_out"]):
        logger.warning(
            "%s leaves out %d of %d words, which are not one token of both models: %s",
            own.name,
            len(left_out),
            len(left_out) + len(own.used_words["swapped"]),
            ", ".join(left_out),
        )
    return own
