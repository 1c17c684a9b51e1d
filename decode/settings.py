"""Options of a call as plain values, each with its default and its meaning, once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from ..fields import check_fields, converted

if TYPE_CHECKING:
    from .generation import Earlier
    from .levels.chat import Conversation

LevelName = Literal["token", "byte"]
"""The unit that is decoded and budgeted step by step."""

Speculate = Literal["off"] | int
"""Tokens of a draft, or none."""

Divergence = Literal["kl", "max"]
"""KL(p* || p_s), or the largest log-ratio of both."""

Charge = Literal["mean", "worst", "drawn"]
"""The log-ratio of p* to p_s that a step costs: its mean over p*, which is KL(p* || p_s), that of
the worst token, or that of the token that was drawn."""

DebtMode = Literal["top", "average", "none"]
Schedule = Literal["adaptive", "global", "fixed"]


class RequestError(ValueError):
    """Says what is wrong with one request; of several, it fails alone."""


def checked_text(name: str, value: Any) -> str:
    """A text that a caller gives; RequestError for anything else, and for a lone surrogate."""
    try:
        text: str = converted(name, value, str)
    except ValueError as error:
        raise RequestError(str(error)) from None
    return text


HINTS = {
    **dict.fromkeys(("max_length", "max_tokens", "max_completion_tokens"), "give max_new_tokens"),
    **dict.fromkeys(("stop_strings", "stop_sequences"), "give stop=, one text or several"),
    **dict.fromkeys(("n", "best_of", "num_beams"), "give num_return_sequences"),
    **dict.fromkeys(
        ("input_ids", "inputs", "attention_mask", "prompt", "text"),
        "prompts are the first argument, also as a tokenizer returns them: generate(tokenizer(x))",
    ),
    **dict.fromkeys(
        ("stop_token_ids", "eos_token_id", "ignore_eos"),
        "a text ends at the end of text of either model; give stop= for other ends",
    ),
    **dict.fromkeys(
        ("logits_processor", "logits_processors", "logit_bias"),
        "a rule chooses tokens, and temperature, repetition_penalty, top_k, top_p and min_p do",
    ),
    **dict.fromkeys(("K", "bank", "budget", "debt"), "it is the rule's, as Anchored(k=1.5, ...)"),
    "do_sample": "tokens are sampled, and temperature=0 takes the most likely ones",
    "streamer": "call stream(prompt), which yields pieces",
    "logprobs": "the steps of a result's ledger have log_prob and safe_log_prob",
    "generation_config": "give its values by their names",
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
        check_fields(self)
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
        """From settings by name, where None is the default; ValueError for an unknown one."""
        for name in settings:
            if name not in SAMPLING_NAMES:
                hint = HINTS.get(name, f"allowed are {', '.join(SAMPLING_NAMES)}")
                raise ValueError(f"unknown sampling setting {name!r}: {hint}")
        return cls(**{name: value for name, value in settings.items() if value is not None})

    @property
    def is_greedy(self) -> bool:
        """Nothing is sampled, so no bound can hold."""
        return self.temperature == 0

    @property
    def untruncated(self) -> "SamplingConfig":
        """The same without what drops tokens."""
        return replace(self, **KEEPS_ALL)

    @property
    def is_truncating(self) -> bool:
        """Some tokens get no probability."""
        return any(getattr(self, name) != value for name, value in KEEPS_ALL.items())

    def as_dict(self) -> dict[str, float | int]:
        """The settings as plain JSON values."""
        return asdict(self)


KEEPS_ALL: Mapping[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""The settings that drop tokens, with the values at which they drop none."""

SAMPLING_NAMES = tuple(field.name for field in fields(SamplingConfig))
"""The settings of a SamplingConfig, in the order in which they act."""

UNWARPED = SamplingConfig(temperature=1.0, repetition_penalty=1.0)
"""The models' distributions as they are."""

FLAT = "flat"
"""Marks, in Annotated, a field of options whose names on a command line have no prefix."""

REPEATED = "repeated"
"""Marks an option of a command line that is given once for each of its values."""

MODEL = "model"
"""Marks an option that names a folder or a Hub id, which stays as it was typed."""


class _Options(TypedDict, total=False):
    """Options of one text or of several. None is the default of each."""

    max_new_tokens: int | None
    """The horizon, 200 by default; K = k * max_new_tokens nats."""
    max_new_bytes: int | None
    """The horizon at byte level, 4 * max_new_tokens by default; K = k * max_new_bytes."""
    stop: str | Sequence[str] | None
    """Texts at which to cut. The name of a special token ends a text where that is drawn."""
    temperature: float | None
    """0.7 by default; 0 takes the most likely tokens, and certifies nothing."""
    repetition_penalty: float | None
    """1.1 by default."""
    top_k: int | None
    """0 by default, which keeps all."""
    top_p: float | None
    """1.0 by default."""
    min_p: float | None
    """0.0 by default."""


class StreamOptions(_Options, total=False):
    """Options of `Decoder.stream`."""

    seed: int | None
    """0 by default."""
    k: float | None
    """Replaces the rule's k."""
    passage: str | None
    """Text that some rules read before the prompt."""
    messages: "Conversation | None"
    """A conversation in place of the prompt."""


class GenerateOptions(_Options, total=False):
    """Options of `Decoder.generate` and `generate_each`."""

    seed: int | Sequence[int] | None
    """One for all prompts or one per prompt; 0 by default. Texts depend on prompt and seed, not on
    their batch; those of other prompts or seeds are drawn independently, and so are equal prompts
    of one call."""
    k: float | Sequence[float | None] | None
    """Replaces the rule's k, for all prompts or one per prompt."""
    num_return_sequences: int | None
    """Samples of each prompt, next to each other in the result, the first of them what one alone
    would be; 1 by default. Their bounds add up, see `Ledger.total_bound`."""
    continue_from: "Earlier | Sequence[Earlier] | None"
    """Generations that reached their length, or their ledgers, to go on from in place of prompts. A
    ledger that contradicts itself is refused, see `continuation`: `verify` first what you did not
    write. Bounds add up."""
    passages: str | Sequence[str] | None
    """Texts that some rules, such as RCAD, read before prompts: one for all, or one per prompt."""
    messages: "Conversation | Sequence[Conversation] | None"
    """Conversations in place of prompts, lists of {"role": ..., "content": ...}. Each model reads
    them by its own chat template, a safe model without one as plain text, which the prefix debt is
    then counted over; the ledger says which read what."""
    progress: bool | str | None
    """True to show a bar, or its title."""


DEFAULT_NEW_TOKENS = 200
DEFAULTS: Mapping[str, Any] = {
    "max_new_tokens": DEFAULT_NEW_TOKENS,
    "max_new_bytes": None,
    "seed": 0,
    "stop": (),
    "k": None,
    "num_return_sequences": 1,
    "messages": None,
}
"""Defaults of both calls."""


def read_options(options: Mapping[str, Any], **more: Any) -> tuple[SamplingConfig, dict[str, Any]]:
    """(the warpers of a call, all of its other options by name).

    more: further options with their defaults. None is the default of each. Raises ValueError, with
    its name, for an unknown option.
    """
    defaults = {**DEFAULTS, **more}
    values = {name: options.get(name) for name in defaults}
    warped = {name: value for name, value in options.items() if name not in defaults}
    return SamplingConfig.of(warped), {
        name: defaults[name] if value is None else value for name, value in values.items()
    }
