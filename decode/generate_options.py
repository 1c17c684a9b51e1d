"""Options of the calls of `Decoder`: each with its default and its meaning, once."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from transformers import GenerationConfig

from .generation import Generation
from .ledger import Ledger
from .levels.chat import Conversation
from .pair.model_pair import ModelPair
from .settings import SAMPLING_NAMES, SamplingConfig
from .streams.configs import SUPPRESSING, suppressed_tokens

Earlier = Generation | Ledger
"""A text that a call goes on from."""


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
    generation_config: GenerationConfig | None
    """Settings of transformers, in place of those above; fields that mean anything else are refused
    by name."""


class StreamOptions(_Options, total=False):
    """Options of `Decoder.stream`."""

    seed: int | None
    """0 by default."""
    k: float | None
    """In place of the rule's."""
    passage: str | None
    """For a rule that reads one before the prompt."""
    messages: Conversation | None
    """A conversation in place of the prompt."""


class GenerateOptions(_Options, total=False):
    """Options of `Decoder.generate` and `generate_each`."""

    seed: int | Sequence[int] | None
    """One for all prompts or one per prompt; 0 by default. Texts depend on prompt and seed, not on
    their batch; those of other prompts or seeds are drawn independently, and so are equal prompts
    of one call."""
    k: float | Sequence[float | None] | None
    """In place of the rule's, for all prompts or one per prompt."""
    num_return_sequences: int | None
    """Samples of each prompt, next to each other in the result, the first of them what one alone
    would be; 1 by default. Their bounds add up, see `Ledger.total_bound`."""
    continue_from: Earlier | Sequence[Earlier] | None
    """Generations that reached their length, or their ledgers, to go on from in place of prompts. A
    ledger that contradicts itself is refused, see `continuation`: `verify` first what you did not
    write. Bounds add up."""
    passages: str | Sequence[str] | None
    """For rules that read one before each prompt, such as RCAD: one for all, or one per prompt."""
    messages: Conversation | Sequence[Conversation] | None
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
NAMES_HERE = {
    **{name: name for name in SAMPLING_NAMES},
    "max_new_tokens": "max_new_tokens",
    "num_return_sequences": "num_return_sequences",
    "stop_strings": "stop",
}
"""Fields of a GenerationConfig that are honored, and what they are called here."""
WITHOUT_EFFECT = (
    "transformers_version",
    "_from_model_config",
    "bos_token_id",
    "pad_token_id",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "early_stopping",
    "length_penalty",
)
"""Fields that change no token: prompts bring their begin tokens, padding is not read, caches are
this library's, and there are no beams that could end early or be ranked by length."""


def read_options(
    pair: ModelPair, options: Mapping[str, Any], **more: Any
) -> tuple[SamplingConfig, dict[str, Any]]:
    """(the warpers of a call, all of its other options by name).

    more: further options with their defaults. None is the default of each, and a field that a
    GenerationConfig leaves at its default says nothing. Raises ValueError, with its name, for an
    option that is unknown, or in the config too, and for a field that would not be honored.
    """
    asked, chosen = {**DEFAULTS, **more}, dict(options)
    config = chosen.pop("generation_config", None)
    for name, value in ({} if config is None else _set_fields(pair, config)).items():
        if chosen.get(name) not in (None, ()):
            raise ValueError(f"{name} is given as an argument and in generation_config, not both")
        chosen[name] = value
    named = {name: chosen.pop(name) for name in asked.keys() & chosen.keys()}
    asked |= {name: value for name, value in named.items() if value is not None}
    return SamplingConfig.of(chosen), asked


def _set_fields(pair: ModelPair, config: GenerationConfig) -> dict[str, Any]:
    """The fields that a config sets, by the names of this library."""
    if not isinstance(config, GenerationConfig):
        kind = type(config).__name__
        raise ValueError(f"generation_config must be a GenerationConfig, got {kind}")
    values = {n: v for n, v in config.to_diff_dict().items() if v is not None}
    if values.pop("do_sample", True) is False:
        values["temperature"] = 0.0  # transformers reads no temperature then
    ends = values.pop("eos_token_id", [])
    known = {token for name in pair.models for token in pair.stop_tokens_of(name)}
    if not {*([ends] if isinstance(ends, int) else ends)} <= known:
        raise ValueError(
            f"generation_config: eos_token_id={ends} holds more than the models' end of text: "
            "give stop= for other ends"
        )
    if suppressed_tokens(config, "generation_config") <= {*pair.banned_token_ids}:
        values = {n: v for n, v in values.items() if n not in SUPPRESSING}
    for name, value in values.items():
        is_off = value is False  # as where nothing is asked for
        if name not in NAMES_HERE and name not in WITHOUT_EFFECT and not is_off:
            raise ValueError(
                f"generation_config: {name}={value!r} is not supported, only "
                f"{', '.join(NAMES_HERE)} are"
            )
    return {NAMES_HERE[name]: value for name, value in values.items() if name in NAMES_HERE}
