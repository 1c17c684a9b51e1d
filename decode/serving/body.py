"""The fields of a request's body that decide a text or its answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ...fields import from_record
from ...inputs import RepeatedName, with_each_once
from ..settings import SAMPLING_NAMES, UNWARPED, SamplingConfig
from .request_fields import HARMLESS, REFUSED, check_sizes, refuse_unhonored

MOST_TOP: Final = 20
"""Likeliest tokens of a place at most, as OpenAI has it."""

STREAM_OPTIONS: Final = ("include_usage", "continuous_usage_stats")


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """The fields of either endpoint that decide a text or its answer."""

    model: str | None = None
    prompt: Any = None
    messages: Any = None
    stream: bool = False
    stream_options: dict[str, Any] = field(default_factory=dict)
    return_token_ids: bool = False
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    seed: int | None = None
    stop: str | list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    n: int = 1
    logprobs: bool | int | None = None
    """Of a completion, likeliest tokens of each place; of a chat, whether it has log-probabilities,
    with `top_logprobs` likeliest tokens of each place."""
    top_logprobs: int | None = None
    echo: bool = False
    """Have a completion begin with its prompt."""
    ignore_eos: bool = False
    """Have the text go on after a token that would end it."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    sampling: SamplingConfig = UNWARPED

    def __post_init__(self) -> None:
        for name, value in self.stream_options.items():
            if name not in STREAM_OPTIONS or type(value) is not bool:
                raise ValueError(f"stream_options: {name}={value!r} is not known here")
        if self.n < 1:
            raise ValueError(f"n must be >= 1, got {self.n}")
        # A last message of the assistant goes on, any other is answered, whether that is said or
        # not; the other way round neither can be had.
        is_begun = _is_begun(self.messages)
        if self.continue_final_message and not is_begun:
            raise ValueError("continue_final_message is of a last message of the assistant")
        if not (self.add_generation_prompt or is_begun):
            raise ValueError("add_generation_prompt=false is of a last message of the assistant")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Body":
        """Read a body's object, where null is the default of each field.

        Raises ValueError, in one line, for a field that is unknown or cannot be honored, and for a
        value of another type.
        """
        refuse_unhonored(values)
        check_sizes(values)
        left_out = {*HARMLESS, *REFUSED, "anchored", "vllm_xargs"}
        kept = {n: v for n, v in values.items() if v is not None and n not in left_out}
        warped = {name: kept.pop(name) for name in SAMPLING_NAMES if name in kept}
        if warped.get("top_k") == -1:  # says as much as 0, in vLLM too
            warped["top_k"] = 0
        sampling = from_record(SamplingConfig, {**UNWARPED.as_dict(), **warped})
        return replace(from_record(cls, kept), sampling=sampling)

    @property
    def most_tokens(self) -> int | None:
        """The most new tokens, None where none is named; ValueError for two that differ."""
        both = {n for n in (self.max_tokens, self.max_completion_tokens) if n is not None}
        if len(both) > 1:
            raise ValueError("give max_tokens or max_completion_tokens, not both")
        return both.pop() if both else None

    def num_top(self, *, is_chat: bool) -> int | None:
        """Likeliest tokens of each place whose log-probabilities are wanted, None for none of any
        token; ValueError for too many, and for the other endpoint's way to ask."""
        wanted, count = self.logprobs, self.top_logprobs
        if is_chat:
            if type(wanted) is int:
                raise ValueError(f"logprobs of a chat must be true or false, got {wanted}")
            if count is not None and not wanted:
                raise ValueError("top_logprobs needs logprobs=true")
            num_top = count or 0 if wanted else None
        else:
            if count is not None or wanted is True:
                raise ValueError("a completion has as many likeliest tokens as logprobs says")
            num_top = wanted if type(wanted) is int else None
        if num_top is not None and not 0 <= num_top <= MOST_TOP:
            raise ValueError(f"at most {MOST_TOP} likeliest tokens are told, got {num_top}")
        return num_top

    @property
    def includes_usage(self) -> bool:
        """Whether the end of a stream counts tokens."""
        return bool(self.stream_options.get("include_usage"))

    @property
    def counts_on(self) -> bool:
        """Whether each part of a stream counts those that have come."""
        return bool(self.stream_options.get("continuous_usage_stats"))


def parsed(content: bytes) -> dict[str, Any]:
    """The object that a body holds; ValueError, in one line, for anything else."""
    try:
        value = json.loads(content, parse_constant=_refused, object_pairs_hook=with_each_once)
    except RepeatedName as error:
        raise ValueError(f"the body {error}") from None
    except RecursionError:
        raise ValueError("the body is nested too deep") from None
    except ValueError as error:
        raise ValueError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError("the body must be an object")
    return value


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _is_begun(messages: Any) -> bool:
    """Whether the last message is one of the assistant, which goes on."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    return isinstance(last, Mapping) and last.get("role") == "assistant"
