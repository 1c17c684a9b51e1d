"""The fields of a request's body, of either endpoint: honored, harmless, or refused and why."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..settings import SAMPLING_NAMES
from .asked import EXTRA_FIELD, FIELD


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

HONORED: Final = (
    *("model", "prompt", "messages", "stream", "stream_options", "return_token_ids"),
    *("max_tokens", "max_completion_tokens", "seed", "stop", "stop_token_ids", "n", "ignore_eos"),
    *("logprobs", "top_logprobs", "echo", "add_generation_prompt", "continue_final_message"),
    *SAMPLING_NAMES,
    *("anchored", "vllm_xargs"),
)
"""Fields that decide a text or its answer."""

HARMLESS: Final = (
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"),
    *("parallel_tool_calls", "priority", "request_id"),
)
"""Fields that change no text: who asks, and how other services keep or order it."""


MOST_ITEMS: Final = {"prompt": 256, "stop": 64, "stop_token_ids": 64, FIELD: 64, EXTRA_FIELD: 64}
"""Most items of a field that is a list or an object: far more than clients send, and few enough
that reading them, and looking for all stops after each token, holds up nobody else."""

LONGEST_STOP: Final = 1024
"""Most characters of a stop, for the same reason."""


MOST_TEXTS: Final = MOST_ITEMS["prompt"]
"""Most texts of one answer, of all prompts together."""


def check_sizes(body: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for fields of a body that would hold up all other requests."""
    for name, most in MOST_ITEMS.items():
        items = body.get(name)
        if name == "prompt" and _is_one_prompt(items):
            continue
        if isinstance(items, list | dict) and len(items) > most:
            raise ValueError(f"{name} has at most {most} items here, got {len(items)}")
    prompts, n = body.get("prompt"), body.get("n")
    num_prompts = len(prompts) if isinstance(prompts, list) and not _is_one_prompt(prompts) else 1
    num_texts = num_prompts * (n if type(n) is int else 1)
    if num_texts > MOST_TEXTS:
        raise ValueError(f"an answer has at most {MOST_TEXTS} texts, got {num_texts}")
    stops = body.get("stop")
    for stop in stops if isinstance(stops, list) else [stops]:
        if isinstance(stop, str) and len(stop) > LONGEST_STOP:
            raise ValueError(f"a stop has at most {LONGEST_STOP} characters, got {len(stop)}")


def _is_one_prompt(prompt: Any) -> bool:
    """Whether it is token ids, or no list."""
    return not isinstance(prompt, list) or all(type(token_id) is int for token_id in prompt)


def unhonored(name: str, value: Any) -> str:
    """The message of a field that is refused."""
    reason = REFUSED[name].reason if name in REFUSED else "leave it out"
    return f"anchored: {name}={value!r} cannot be honored within the bound: {reason}"


def refuse_unhonored(body: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for the first field of a body that is unknown here or cannot
    be honored; one that is null or empty says nothing."""
    for name, value in body.items():
        if value in (None, "", [], {}) or name in HONORED or name in HARMLESS:
            continue
        if (refusal := REFUSED.get(name)) is None:
            raise ValueError(f"anchored: the field {name!r} is not known here: leave it out")
        if not any(_is_equal(value, one) for one in refusal.neutral):
            raise ValueError(unhonored(name, value))


def _is_equal(value: Any, other: Any) -> bool:
    """As JSON has it: true is not 1, but 1 is 1.0."""
    return bool(value == other) and (type(value) is bool) == (type(other) is bool)


def refuse_special_stops(stop: str | Sequence[str] | None, special: Mapping[str, int]) -> None:
    """Raise ValueError, in one line, for stop texts that hold special tokens, by name."""
    for text in [stop] if isinstance(stop, str) else stop or ():
        for name in special:
            if name in text:
                raise ValueError(
                    f"anchored: stop {text!r} holds the special token {name!r}, which is no text: "
                    f"give stop_token_ids=[{special[name]}]"
                )
