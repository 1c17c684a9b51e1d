"""The fields of a request's body: honored, harmless, or refused and why."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from ...fields import from_record
from ...inputs import RepeatedName, with_each_once
from ..settings import SAMPLING_NAMES, UNWARPED, SamplingConfig
from .anchored_options import FIELD, AnchoredOptions


@dataclass(frozen=True, slots=True)
class Refusal:
    """A field that cannot be honored: what it may say all the same, and why nothing else."""

    neutral: tuple[Any, ...]
    """Values that ask for nothing, besides null and what is empty."""
    reason: str


AFTER: Final = "it would change the distribution after the projection"
BEYOND: Final = "it would forbid tokens that p* may draw"
OTHER_TEXT: Final = "it would change what the models read"

REFUSED: Final[dict[str, Refusal]] = {
    "best_of": Refusal((1,), "choosing among texts draws none of them from p*"),
    "use_beam_search": Refusal((False,), "beams are not drawn from p*"),
    "length_penalty": Refusal((1.0,), "it is of beams, which are not drawn from p*"),
    "presence_penalty": Refusal((0.0,), "use repetition_penalty, which acts on both models"),
    "frequency_penalty": Refusal((0.0,), "use repetition_penalty, which acts on both models"),
    "logit_bias": Refusal((), AFTER),
    "watermarking": Refusal((), AFTER),
    "thinking_token_budget": Refusal((), AFTER),
    "min_tokens": Refusal((0,), BEYOND),
    "structured_outputs": Refusal((), BEYOND),
    "response_format": Refusal(({"type": "text"},), BEYOND),
    "guided_json": Refusal((), BEYOND),
    "guided_regex": Refusal((), BEYOND),
    "guided_choice": Refusal((), BEYOND),
    "guided_grammar": Refusal((), BEYOND),
    "allowed_token_ids": Refusal((), BEYOND),
    "bad_words": Refusal((), BEYOND),
    "tools": Refusal((), "the models call no tools"),
    "tool_choice": Refusal(("none", "auto"), "the models call no tools"),
    "functions": Refusal((), "the models call no tools"),
    "function_call": Refusal(("none", "auto"), "the models call no tools"),
    "modalities": Refusal((["text"],), "the models write text"),
    "audio": Refusal((), "the models write text"),
    "prediction": Refusal((), "drafts are the safe model's"),
    "reasoning_effort": Refusal((), OTHER_TEXT),
    "verbosity": Refusal((), OTHER_TEXT),
    "web_search_options": Refusal((), OTHER_TEXT),
    "chat_template": Refusal((), OTHER_TEXT),
    "chat_template_kwargs": Refusal((), OTHER_TEXT),
    "documents": Refusal((), OTHER_TEXT),
    "truncate_prompt_tokens": Refusal((), OTHER_TEXT),
    "add_special_tokens": Refusal((True,), OTHER_TEXT),
    "suffix": Refusal((), "the models read from left to right"),
    "prompt_logprobs": Refusal((), "ask for echo and logprobs"),
    "include_stop_str_in_output": Refusal((False,), "texts are cut before the stop"),
    "skip_special_tokens": Refusal((True,), "special tokens are no text"),
    "spaces_between_special_tokens": Refusal((True,), "special tokens are no text"),
    "return_tokens_as_token_ids": Refusal((False,), "ask for return_token_ids"),
}
"""Would change the distribution after the projection, or could not be honored."""

HARMLESS: Final = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("parallel_tool_calls", "priority", "request_id"),
)
"""Fields that change no text: who asks, and how other services keep or order it."""


MOST_TEXTS: Final = 256
"""Most texts of one answer, of all prompts together."""

MOST_STOPS: Final = 64
LONGEST_STOP: Final = 1024
"""Most stops, and characters of one: far more than clients send, and few enough that looking for
all of them after each token holds up nobody else."""

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
    """A completion gets this many likeliest tokens of each place; a chat says true here, and how
    many in `top_logprobs`."""
    top_logprobs: int | None = None
    echo: bool = False
    """Have a completion begin with its prompt."""
    ignore_eos: bool = False
    """Have the text go on after a token that would end it."""
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    sampling: SamplingConfig = UNWARPED
    anchored: AnchoredOptions = field(default_factory=AnchoredOptions)

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
        left_out = {*HARMLESS, *REFUSED, FIELD}
        kept = {n: v for n, v in values.items() if v is not None and n not in left_out}
        warped = {name: kept.pop(name) for name in SAMPLING_NAMES if name in kept}
        if warped.get("top_k") == -1:  # says as much as 0, in vLLM too
            warped["top_k"] = 0
        sampling = from_record(SamplingConfig, {**UNWARPED.as_dict(), **warped})
        body: Body = from_record(cls, kept)
        return replace(body, sampling=sampling, anchored=AnchoredOptions.of(values))

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


HONORED: Final = frozenset(
    {*(option.name for option in fields(Body)), *SAMPLING_NAMES} - {"sampling"}
)
"""Fields that decide a text or its answer."""


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


def check_sizes(body: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for fields of a body that would hold up all other requests."""
    prompts, n, stop = body.get("prompt"), body.get("n"), body.get("stop")
    if not isinstance(prompts, list) or all(type(token_id) is int for token_id in prompts):
        prompts = [prompts]  # one text, or its token ids
    num_texts = len(prompts) * (n if type(n) is int else 1)
    if num_texts > MOST_TEXTS:
        raise ValueError(f"an answer has at most {MOST_TEXTS} texts, got {num_texts}")
    for name in ("stop", "stop_token_ids"):
        if isinstance(ends := body.get(name), list) and len(ends) > MOST_STOPS:
            raise ValueError(f"{name} has at most {MOST_STOPS} items here, got {len(ends)}")
    for text in stop if isinstance(stop, list) else [stop]:
        if isinstance(text, str) and len(text) > LONGEST_STOP:
            raise ValueError(f"a stop has at most {LONGEST_STOP} characters, got {len(text)}")


def refuse_unhonored(body: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for the first field of a body that is unknown here or cannot
    be honored; one that is null or empty says nothing."""
    for name, value in body.items():
        if value in (None, "", [], {}) or name in HONORED or name in HARMLESS:
            continue
        if (refusal := REFUSED.get(name)) is None:
            raise ValueError(f"anchored: the field {name!r} is not known here: leave it out")
        if not any(_is_equal(value, one) for one in refusal.neutral):
            raise ValueError(
                f"anchored: {name}={value!r} cannot be honored within the bound: {refusal.reason}"
            )


def _is_equal(value: Any, other: Any) -> bool:
    """Whether JSON values are equal: true is not 1, but 1 is 1.0."""
    return bool(value == other) and (type(value) is bool) == (type(other) is bool)
