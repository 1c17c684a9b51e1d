"""What a caller chooses, as plain values, and how both models' distributions are warped."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal

from ..field_types import INT_LIMIT

LevelName = Literal["token", "byte"]
"""The unit that is decoded and budgeted step by step."""

Speculate = Literal["auto", "off"] | int
"""Tokens of a draft, as many as it is worth, or none."""


def real_number(name: str, value: Any) -> float:
    """A number that a caller gives as a float: numpy's and 0-d tensors too, which no ledger holds.

    Raises ValueError, with the name, for anything else, bools among it.
    """
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, Real):
        raise ValueError(f"{name} must be a number, got {value!r}")
    try:
        return float(plain)
    except OverflowError:  # an int of more than 308 digits
        raise ValueError(f"{name} must be a number, got {str(value)[:4]}...") from None


def whole_number(name: str, value: Any) -> int:
    """A whole number that a caller gives as an int; otherwise as `real_number`."""
    plain = _plain(value)
    if isinstance(plain, bool) or not isinstance(plain, Integral):
        raise ValueError(f"{name} must be a whole number, got {value!r}")
    number = int(plain)
    if abs(number) >= INT_LIMIT:  # which no ledger holds
        raise ValueError(f"{name} must be a whole number of 64 bits, got {value!r}")
    return number


def _plain(value: Any) -> Any:
    """The Python value of a numpy scalar, a 0-d array or a 0-d tensor; others as they are."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def check_flag(name: str, value: Any) -> bool:
    """A flag that a caller gives, numpy's too; ValueError unless it is True or False."""
    plain = _plain(value)
    if not isinstance(plain, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return plain


class UnreadableText(ValueError):
    """A text that no tokenizer reads; of several, it fails alone."""


def checked_text(name: str, value: Any) -> str:
    """A text that a caller gives.

    Raises ValueError for anything else, and UnreadableText for a lone surrogate, half of a
    character of UTF-16 as scraped JSON has them.
    """
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnreadableText(
            f"{name} cannot be written as UTF-8: character {error.start} is a lone surrogate"
        ) from None
    return value


def checked_texts(name: str, values: Any) -> list[str]:
    """A list of texts that a caller gives; a text by itself is refused."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name} must be a list of texts, got {values!r}")
    return [checked_text(f"one of {name}", value) for value in values]


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError, in one line, for a value that is not among these."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")


SPELLINGS = {
    "do_sample": "tokens are sampled, and temperature=0 takes the most likely ones",
    "max_length": "give max_new_tokens, which does not count the prompt",
    "max_tokens": "give max_new_tokens",
    "stop_strings": "give stop=, one text or several",
    "n": "give num_return_sequences",
    "eos_token_id": "a text ends at the end of text of either model; give stop= for other ends",
}
"""Names that callers of other libraries write, and what they are called here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingConfig:
    """Warpers, in the order in which they act; each acts on both models alike."""

    temperature: float = 0.7
    """Number that divides the logits; 0 takes the most likely token of p* and certifies nothing."""
    repetition_penalty: float = 1.1
    """Number that divides the positive and multiplies the negative logits of tokens seen before
    (Keskar et al. 2019); 1 changes none."""
    top_k: int = 0
    """Tokens of each model that are kept, the most likely ones; 0 keeps all."""
    top_p: float = 1.0
    """Mass of the smallest set of tokens that is kept, in (0, 1] (Holtzman et al. 2020); 1 keeps
    all."""
    min_p: float = 0.0
    """Share of the most likely token's probability below which tokens are dropped, in [0, 1); 0
    keeps all."""

    def __post_init__(self) -> None:
        for field in fields(self):
            check = whole_number if field.name == "top_k" else real_number
            object.__setattr__(self, field.name, check(field.name, getattr(self, field.name)))
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
                hint = SPELLINGS.get(name, f"allowed are {', '.join(allowed)}")
                raise ValueError(f"unknown sampling setting {name!r}: {hint}")
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
