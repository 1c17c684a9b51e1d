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
    """Values that ask for nothing, the default first; empty lists and objects always do."""
    reason: str


AFTER: Final = "it would change the distribution after the projection"
BEYOND: Final = "it would forbid tokens that p* may draw"
OTHER_TEXT: Final = "it would change what the models read"

REFUSED: Final[dict[str, Refusal]] = {
    "n": Refusal((1,), "send as many requests, with sample 0, 1, ... in anchored"),
    "best_of": Refusal((1, None), "choosing among texts draws none of them from p*"),
    "use_beam_search": Refusal((False,), "beams are not drawn from p*"),
    "length_penalty": Refusal((1.0,), "it is of beams, which are not drawn from p*"),
    "presence_penalty": Refusal((0.0,), "use repetition_penalty, which acts on both models"),
    "frequency_penalty": Refusal((0.0,), "use repetition_penalty, which acts on both models"),
    "logit_bias": Refusal((None,), AFTER),
    "watermarking": Refusal((None,), AFTER),
    "thinking_token_budget": Refusal((None,), AFTER),
    "ignore_eos": Refusal((False,), BEYOND),
    "min_tokens": Refusal((0,), BEYOND),
    "structured_outputs": Refusal((None,), BEYOND),
    "response_format": Refusal((None, {"type": "text"}), BEYOND),
    "guided_json": Refusal((None,), BEYOND),
    "guided_regex": Refusal((None,), BEYOND),
    "guided_choice": Refusal((None,), BEYOND),
    "guided_grammar": Refusal((None,), BEYOND),
    "allowed_token_ids": Refusal((None,), BEYOND),
    "bad_words": Refusal((None,), BEYOND),
    "tools": Refusal((None,), "the models call no tools"),
    "tool_choice": Refusal((None, "none", "auto"), "the models call no tools"),
    "functions": Refusal((None,), "the models call no tools"),
    "function_call": Refusal((None, "none", "auto"), "the models call no tools"),
    "modalities": Refusal((None, ["text"]), "the models write text"),
    "audio": Refusal((None,), "the models write text"),
    "prediction": Refusal((None,), "drafts are the safe model's"),
    "reasoning_effort": Refusal((None,), OTHER_TEXT),
    "verbosity": Refusal((None,), OTHER_TEXT),
    "web_search_options": Refusal((None,), OTHER_TEXT),
    "chat_template": Refusal((None,), OTHER_TEXT),
    "chat_template_kwargs": Refusal((None,), OTHER_TEXT),
    "documents": Refusal((None,), OTHER_TEXT),
    "truncate_prompt_tokens": Refusal((None,), OTHER_TEXT),
    "add_special_tokens": Refusal((None, True), OTHER_TEXT),
    "add_generation_prompt": Refusal((True,), OTHER_TEXT),
    "continue_final_message": Refusal((False,), "a last message of the assistant is continued"),
    "suffix": Refusal((None, ""), "the models read from left to right"),
}
"""Would change the distribution after the projection, or could not be honored, on either server."""

OFF_HERE: Final[dict[str, Refusal]] = {
    "echo": Refusal((False,), "only vLLM's server repeats the prompt"),
    "logprobs": Refusal((None, False), "those of p* and p_s are in the ledger"),
    "top_logprobs": Refusal((None, 0), "those of p* and p_s are in the ledger"),
    "prompt_logprobs": Refusal((None,), "only vLLM's server computes them"),
    "include_stop_str_in_output": Refusal((False,), "texts are cut before the stop"),
    "skip_special_tokens": Refusal((True,), "special tokens are no text"),
    "spaces_between_special_tokens": Refusal((True,), "special tokens are no text"),
    "return_tokens_as_token_ids": Refusal((None, False), "ask for return_token_ids"),
}
"""Fields that vLLM's server honors, and the embedded one does not."""

HONORED: Final = (
    *("model", "prompt", "messages", "stream", "stream_options", "return_token_ids"),
    *("max_tokens", "max_completion_tokens", "seed", "stop", "stop_token_ids"),
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


def check_sizes(body: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for fields of a body of either server that would hold up all
    other requests."""
    for name, most in MOST_ITEMS.items():
        items = body.get(name)
        if name == "prompt" and _is_one_prompt(items):
            continue
        if isinstance(items, list | dict) and len(items) > most:
            raise ValueError(f"{name} has at most {most} items here, got {len(items)}")
    stops = body.get("stop")
    for stop in stops if isinstance(stops, list) else [stops]:
        if isinstance(stop, str) and len(stop) > LONGEST_STOP:
            raise ValueError(f"a stop has at most {LONGEST_STOP} characters, got {len(stop)}")


def _is_one_prompt(prompt: Any) -> bool:
    """Whether it is token ids, or nothing that has items."""
    return not isinstance(prompt, list) or all(type(token_id) is int for token_id in prompt)


def unhonored(name: str, value: Any) -> str:
    """The message of a field that is refused."""
    table = REFUSED if name in REFUSED else OFF_HERE
    reason = table[name].reason if name in table else "leave it out"
    return f"anchored: {name}={value!r} cannot be honored within the bound: {reason}"


def refuse_unhonored(body: Mapping[str, Any]) -> None:
    """Raise ValueError, in one line, for the first field of a body that the embedded server does
    not know or cannot honor."""
    for name, value in body.items():
        if name in HONORED or name in HARMLESS:
            continue
        refusal = REFUSED.get(name) or OFF_HERE.get(name)
        if refusal is None:
            raise ValueError(f"anchored: the field {name!r} is not known here: leave it out")
        if value not in ([], {}) and not any(_is_equal(value, one) for one in refusal.neutral):
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
