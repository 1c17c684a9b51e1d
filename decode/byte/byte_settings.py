"""How a pair is decoded byte by byte."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from .byte_evaluation import ByteEvaluation, Mode, PromptScores

Warped = Literal["token", "byte"]
DebtEvaluation = Literal["exact", "bounded"]


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
    prefetch: int = 0
    """Likely continuations that each forward computes ahead; the same laws from fewer forwards."""
    debt: DebtEvaluation = "exact"
    """bounded: an upper bound of the prefix debt, from a forward over the prompt's tokens alone."""

    def __post_init__(self) -> None:
        _check_choice("mode", self.mode, get_args(Mode))
        _check_choice("warped", self.warped, get_args(Warped))
        _check_choice("debt", self.debt, get_args(DebtEvaluation))
        self.evaluation("risky")

    def evaluation(self, name: str) -> ByteEvaluation:
        """What "safe" or "risky" computes; ValueError for values out of range."""
        bounds: dict[str, PromptScores] = {"safe": "lower", "risky": "upper"}
        return ByteEvaluation(
            tau=self.tau if name == "risky" else 0.0,
            prefetch=self.prefetch,
            prompt_scores="exact" if self.debt == "exact" else bounds[name],
            mode=self.mode,
        )

    def as_dict(self) -> dict[str, Any]:
        """The settings as plain JSON values."""
        return asdict(self)


def _check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
