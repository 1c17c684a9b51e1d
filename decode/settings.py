"""What a caller chooses by name, and how both models' distributions are warped."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

LevelName = Literal["token", "byte"]
"""What is decoded and budgeted step by step."""

EngineName = Literal["auto", "eager", "device"]
"""Where steps run."""

Speculate = Literal["auto", "off"] | int
"""Tokens of a draft, as many as it is worth, or none."""


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, in one line, for a value that is not among these."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """Warpers, in the order in which they act; each acts on both models alike."""

    temperature: float = 0.7
    """Divides the logits; 0 takes the most likely token of p* and certifies nothing."""
    repetition_penalty: float = 1.1
    """Divides positive, multiplies negative logits of tokens seen before (Keskar et al. 2019)."""
    top_k: int = 0
    """Keep the k most likely tokens of each model; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of tokens of this mass, in (0, 1] (Holtzman et al. 2020)."""
    min_p: float = 0.0
    """Drop tokens below this share of the most likely token's probability, in [0, 1)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature must be finite and >= 0, got {self.temperature}")
        if not (math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0):
            raise ValueError(f"repetition_penalty must be > 0, got {self.repetition_penalty}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be >= 0 (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be in [0, 1), got {self.min_p}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "SamplingConfig":
        """From settings by name, of a call or a ledger; ValueError for an unknown one."""
        allowed = [field.name for field in fields(cls)]
        for name in settings:
            if name not in allowed:
                raise ValueError(
                    f"unknown sampling setting {name!r}: allowed are {', '.join(allowed)}"
                )
        return cls(**settings)

    @property
    def is_greedy(self) -> bool:
        """Nothing is sampled, so no bound can hold."""
        return self.temperature == 0

    @property
    def is_truncating(self) -> bool:
        """Some tokens get no probability."""
        return self.top_k > 0 or self.top_p < 1.0 or self.min_p > 0.0

    def as_dict(self) -> dict[str, float | int]:
        """The settings as plain JSON values."""
        return asdict(self)
