"""Decoding rules: their inputs and what they return; caches and stopping are the engine's."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, cast

import torch
from torch import Tensor

from ...kernels.projection import Projection
from ..settings import Charge, Divergence
from .budget import Budget

ModelName = Literal["safe", "risky"]

StreamName = str
"""Names one prompt that one model reads: "safe", "risky", or a name that the rule chooses."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """The model that reads, and what it reads before the prompt."""

    model: ModelName
    preface: str = ""
    """A text, the same for all requests."""
    takes_passage: bool = False
    """The request's passage comes before the prompt."""


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
        """The past of these rows as rules see it, on the CPU."""
        return Past(
            texts=[list(self._texts[row]) for row in rows],
            log_probs={name: nats[list(rows)] for name, nats in self._log_probs.items()},
        )

    def append(
        self, rows: Sequence[int], logits: Mapping[StreamName, Tensor], token_ids: Sequence[int]
    ) -> None:
        """The next token of these rows, by the raw logits (rows, vocab_size) it was drawn from."""
        index = torch.tensor(token_ids)[:, None]
        for name, nats in self._log_probs.items():
            log_probs = logits[name].double().log_softmax(-1)
            nats[list(rows)] += log_probs.gather(1, index.to(log_probs.device))[:, 0].cpu()
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
    """The texts so far, for rules that look back."""

    def warped(self, name: StreamName) -> Tensor:
        """(batch, vocab_size) warped logits of one stream."""
        return self.warp(self.logits[name])


class NextToken(Protocol):
    """A distribution p* over the next token of every row, and the token drawn from it."""

    @property
    def weight(self) -> Tensor: ...  # (batch,) float64, 1 where nothing is projected
    @property
    def spend(self) -> Tensor:
        """(batch,) float64 nats, by `ceil_to_quantum` if certified: of the step, or of the token
        that was drawn."""
        ...

    @property
    def is_valid(self) -> Tensor: ...  # (batch,) bool
    @property
    def token_ids(self) -> Tensor | None: ...  # (batch,) int64
    @property
    def accepted(self) -> Tensor | None: ...  # (batch,) bool
    @property
    def stored_log_probs(self) -> tuple[Tensor, Tensor] | None:
        """log p* and log p_s of `token_ids`, (batch,) float64 each, where drawing computes them."""
        ...

    def log_probs(self) -> Tensor: ...  # (batch, vocab_size)
    def token_log_probs(self, token_ids: Tensor) -> Tensor: ...  # (batch,) float64
    def safe_token_log_probs(self, token_ids: Tensor) -> Tensor:
        """log p_s of one token per row, (batch,) float64; NaN where the safe model is not read."""
        ...


def token_spend(drawn: NextToken, token_ids: Tensor) -> Tensor:
    """(batch,) float64 nats of a step that draws these tokens, (batch,) int64; -inf for one that p*
    cannot draw, where tokens are charged."""
    return drawn.token_spend(token_ids) if isinstance(drawn, Projection) else drawn.spend


class Rule(ABC):
    """A decoding rule: a frozen object that holds its settings, and opens for a level.

    Its other members are claims: what the engine and `verify` may expect of it at any level.
    """

    looks_back: ClassVar[bool] = False
    """Reads `inputs.past`: p* then depends on more than logits and budget, so nothing is drafted
    and no step stays on a device."""
    is_certified: ClassVar[bool] = False
    """The spends that it reports bound the divergence from the safe model."""
    is_projection: ClassVar[bool] = False
    """p* is p_r projected onto the budget, tilted ("kl") or clipped ("max"), so that `verify`
    computes it from the recorded figures alone. Of any other rule it takes p* from `next_token`,
    and computes its divergence from p_s and the draw itself."""
    retokenizes: ClassVar[bool] = False
    """Decodes the risky model's tokens where the safe one has others."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Names the rule in ledgers, configs and commands."""

    @property
    def streams(self) -> Mapping[StreamName, StreamSpec]:
        """The streams that its `next_token` reads; no other model runs."""
        return BOTH

    @property
    def divergence(self) -> Divergence | None:
        """The divergence that a certified rule's spends bound, one of `reference.DIVERGENCES`; None
        where they bound nothing."""
        return None

    @property
    def charge(self) -> Charge | None:
        """The log-ratio of p* to p_s that a step costs, and so the kind of bound that a text has;
        None where spends bound nothing."""
        if not self.is_certified:
            return None
        return "worst" if self.divergence == "max" else "mean"

    @property
    def gain(self) -> float:
        """Factor from an error of the logits to that of p*: 1 where p* follows from warped logits,
        more where raw ones are mixed."""
        return 1.0

    @property
    def charges_debt(self) -> bool:
        """Whether prompts have a debt; without one they cost less to read."""
        return False

    def settings(self) -> dict[str, Any]:
        """Plain JSON values from which `registry.make_rule` makes the rule again: its fields."""
        return {field.name: getattr(self, field.name) for field in fields(cast(Any, self))}

    @abstractmethod
    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        """The budget of one request, before its prompt was read: without a debt.

        horizon: most steps. k: nats per step in place of the rule's k, in [0, BUDGET_CAP]. Raises
        ValueError where k * horizon is beyond BUDGET_CAP, or k is given to a rule that was made
        from K.
        """

    def debt_for(self, ratios: Tensor) -> float:
        """Nats of debt of a prompt.

        ratios: (num_positions,) float64 log-likelihood ratios of its tokens. Raises ValueError
        where one is NaN.
        """
        return 0.0

    @abstractmethod
    def open(self, level: Symbols) -> "OpenRule":
        """The rule for texts of one level; ValueError for a level at which it cannot decode."""


CLAIMS = (
    *("name", "looks_back", "is_certified", "divergence", "charge"),
    *("is_projection", "gain", "charges_debt", "retokenizes"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenRule:
    """A rule at one level, as the engine and `verify` see it: this alone gives distributions.

    Its claims are read once, so that what was checked is what counts: see `Rule` for them.
    """

    rule: Rule
    next_token: Callable[[StepInputs], NextToken]
    """p* of a step for every row, with the token drawn from it where there are uniforms."""
    streams: Mapping[StreamName, StreamSpec]
    """The streams that `next_token` reads at this level."""
    used_words: Mapping[str, list[str]] | None
    """The words that a rule swaps at this level: those "swapped" and those "left_out", which are no
    single symbol here."""
    name: str
    looks_back: bool
    is_certified: bool
    divergence: Divergence | None
    charge: Charge | None
    is_projection: bool
    gain: float
    charges_debt: bool
    retokenizes: bool

    @classmethod
    def of(
        cls,
        rule: Rule,
        next_token: Callable[[StepInputs], NextToken],
        *,
        streams: Mapping[StreamName, StreamSpec] | None = None,
        used_words: Mapping[str, list[str]] | None = None,
    ) -> "OpenRule":
        """Read the claims of a rule; streams: where the level decides them, else the rule's."""
        claims: dict[str, Any] = {name: getattr(rule, name) for name in CLAIMS}
        reads: Any = rule.streams if streams is None else streams
        if isinstance(reads, Mapping):
            reads = MappingProxyType(dict(reads))
        return cls(rule=rule, next_token=next_token, streams=reads, used_words=used_words, **claims)

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        """See `Rule.budget_for`."""
        return self.rule.budget_for(horizon=horizon, k=k)

    def debt_for(self, ratios: Tensor) -> float:
        """See `Rule.debt_for`."""
        return self.rule.debt_for(ratios.clone())


def takes_passage(rule: Rule | OpenRule) -> bool:
    """Whether one of its streams reads a passage before each prompt."""
    return any(stream.takes_passage for stream in rule.streams.values())
