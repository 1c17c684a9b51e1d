"""How a pair is decoded byte by byte."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..settings import check_choice

if TYPE_CHECKING:
    import torch  # takes seconds, and commands name these settings in their help

Mode = Literal["masked", "raw"]
"""masked: only tokens that keep the sequence viable. raw: all that keep the text UTF-8."""

PromptScores = Literal["exact", "upper", "lower", "none"]
"""exact: log-probabilities of the prompt's bytes. upper, lower: an end of an interval that holds
them, from the prompt's own tokens alone. none: none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteEvaluation:
    """What one model computes at byte level; the safe model's must stay exact (`tau` 0)."""

    tau: float = 0.0
    """Most total variation that a step may lose to nodes that are left out for their small mass."""
    prefetch: int = 0
    """Likely continuations whose nodes join each forward; changes nothing but the cost."""
    prompt_scores: PromptScores = "exact"
    """What `read` says about the bytes of prompts. Bounded debts take the upper end of the risky
    model and the lower end of the safe one."""
    mode: Mode = "masked"
    """Which tokens count: those that keep the text canonical, or all that keep it UTF-8."""

    def __post_init__(self) -> None:
        if not 0 <= self.tau < 1:
            raise ValueError(f"tau must be in [0, 1), got {self.tau}")
        if self.prefetch < 0:
            raise ValueError(f"prefetch must be >= 0, got {self.prefetch}")


@dataclass(slots=True)
class ByteCounts:
    """The work for one row since its prompt came, the prompt included."""

    num_forwards: int = 0
    """Forwards that the row took part in."""
    num_nodes: int = 0
    """Token positions computed in them."""
    num_guesses: int = 0
    """Those of them that were computed ahead of the text."""
    num_hits: int = 0
    """Guesses whose distribution was needed later."""
    total_variation: float = 0.0
    """Upper bound on the total variation lost to `tau` in the last step."""
    max_total_variation: float = 0.0
    """Its largest value so far."""
    weighed: float = 0.0
    """Sum, over the next-token distributions that went into those of bytes, of their node's share
    of the text's mass."""
    masked_mass: float = 0.0
    """The same of this share times the probability that masking took from other tokens; 0 where a
    truncation of tokens is on, which only sees the others."""

    def weigh(self, share: float, masked_mass: float) -> None:
        """Count one distribution."""
        self.weighed += share
        self.masked_mass += share * masked_mass

    def record(self) -> dict[str, float]:
        """What a ledger keeps; `masked_mass` as the mean of the distributions by share."""
        kept = ("num_forwards", "num_nodes", "num_guesses", "num_hits", "max_total_variation")
        figures: dict[str, float] = {name: getattr(self, name) for name in kept}
        return figures | {"masked_mass": self.masked_mass / self.weighed if self.weighed else 0.0}


Warped = Literal["token", "byte"]
DebtEvaluation = Literal["exact", "bounded"]

PREFETCH = 4
"""Of models on a CPU unless asked for: one text takes a third less time, eight take 2 % more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ByteSettings:
    """What decides the laws of bytes beside the models; ledgers record it."""

    mode: Mode = "masked"
    """masked: tokens that a tokenizer would not write there get no probability. raw: they do, until
    the text shows that they were not meant."""
    warped: Warped = "token"
    """What temperature, penalty and truncation act on: tokens, before they become bytes, or
    bytes."""
    tau: float = 0.0
    """Most total variation that a step of the risky model may lose to tokens left out as unlikely;
    costs utility, never the bound."""
    prefetch: int | None = None
    """Likely continuations that each forward computes ahead; the same laws from fewer forwards.
    None: PREFETCH for models on a CPU; no others, as choosing them takes the laws to the host."""
    debt: DebtEvaluation = "exact"
    """bounded: an upper bound of the prefix debt, from a forward over the prompt's tokens alone."""

    def __post_init__(self) -> None:
        check_choice("mode", self.mode, get_args(Mode))
        check_choice("warped", self.warped, get_args(Warped))
        check_choice("debt", self.debt, get_args(DebtEvaluation))
        self.evaluation("risky")

    def on(self, devices: Iterable[torch.device]) -> ByteSettings:
        """The same with what follows from where the models are."""
        if self.prefetch is not None:
            return self
        is_on_cpu = all(device.type == "cpu" for device in devices)
        return replace(self, prefetch=PREFETCH if is_on_cpu else 0)

    def evaluation(self, name: str) -> ByteEvaluation:
        """What "safe" or "risky" computes; ValueError for values out of range."""
        bounds: dict[str, PromptScores] = {"safe": "lower", "risky": "upper"}
        return ByteEvaluation(
            tau=self.tau if name == "risky" else 0.0,
            prefetch=self.prefetch or 0,
            prompt_scores="exact" if self.debt == "exact" else bounds[name],
            mode=self.mode,
        )

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return asdict(self)
