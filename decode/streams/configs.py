"""The ends, the bans and the longest length of a model's texts, by its configs."""

import logging
import textwrap
from numbers import Integral
from typing import Any, Final

from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ..settings import SAMPLING_NAMES, SamplingConfig

logger = logging.getLogger(__name__)

NEUTRAL: Final[dict[str, Any]] = {
    **{name: getattr(SamplingConfig(), name) for name in SAMPLING_NAMES},
    **dict.fromkeys(("typical_p", "encoder_repetition_penalty", "guidance_scale"), 1.0),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0.0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    **dict.fromkeys(("min_length", "min_new_tokens"), 0),
    **dict.fromkeys(("top_h", "penalty_alpha", "dola_layers", "exponential_decay_length_penalty")),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "stop_strings")),
    **dict.fromkeys(("sequence_bias", "force_words_ids", "constraints", "watermarking_config")),
    **dict.fromkeys(("remove_invalid_values", "token_healing"), False),
    "do_sample": True,
    "num_beams": 1,
}
"""Fields of a model's generation_config that would change its texts and are not followed, each with
the value at which texts are those of here."""


SUPPRESSING: Final = ("suppress_tokens", "bad_words_ids")
"""Fields whose tokens are drawn by neither model."""


def token_id_list(value: object, place: str, field: str = "eos_token_id") -> list[int]:
    """The token ids of a field, [] for None; ValueError, with its place, for others."""
    listed: Any = value if isinstance(value, list | tuple) else [value]
    if value is None:
        return []
    if not all(isinstance(i, Integral) and not isinstance(i, bool) and int(i) >= 0 for i in listed):
        shown = textwrap.shorten(repr(value), 80)
        raise ValueError(f"{field} must be a token id or a list of them, got {shown} in {place}")
    return [int(token) for token in listed]


def declared_ends(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> set[int]:
    """Tokens at which a model ends a text, by any of the places that say so.

    Those that the tokenizer does not know, or of which the model has no row, are left out. Raises
    ValueError, in one line, for what is no token id.
    """
    num_rows, text_of = model.config.get_text_config().vocab_size, tokenizer.backend_tokenizer
    declared = _declared(name, model, tokenizer)
    return {t for t in declared if t < num_rows and text_of.id_to_token(t) is not None}


def read_generation_config(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> list[int]:
    """The tokens that a model's generation_config suppresses, ascending.

    Logs, in a line each, ends of texts that never come and what is not followed. Raises ValueError,
    in one line, as `suppressed_tokens`.
    """
    config, place = model.generation_config, f"the {name} model's generation_config"
    if config is None:
        logger.warning("the %s model has no generation_config that says where texts end", name)
    declared = _declared(name, model, tokenizer)
    if missing := sorted(declared - declared_ends(name, model, tokenizer)):
        listed = ", ".join(map(str, missing))
        logger.warning("the %s model ends texts at token %s, which it does not have", name, listed)
    values = {} if config is None else config.to_diff_dict()
    said = {field: values[field] for field in sorted(NEUTRAL.keys() & values.keys())}
    if differing := [
        f"{field}={value!r:.60}"
        for field, value in said.items()
        if value is not None and value != NEUTRAL[field]
    ]:
        listed = ", ".join(differing)
        logger.warning("%s is not followed in %s: the options of a call decide", place, listed)
    return sorted(suppressed_tokens(config, place))


def _declared(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> set[int]:
    """Token ids; a composite model's config or that of its text may name them."""
    places = {
        "generation_config": model.generation_config,
        "config": model.config,
        "text config": model.config.get_text_config(),
        "tokenizer": tokenizer,
    }
    return {
        token
        for place, source in places.items()
        for token in token_id_list(
            getattr(source, "eos_token_id", None), f"the {name} model's {place}"
        )
    }


def suppressed_tokens(source: object, place: str) -> set[int]:
    """Tokens that a generation_config, or None, keeps out of all texts of its model.

    Raises ValueError, in one line, for bans that hold in some places of a text alone, which two
    models would not share, and for what is no token id.
    """
    begin, words = (
        getattr(source, name, None) or [] for name in ("begin_suppress_tokens", "bad_words_ids")
    )
    ends = token_id_list(getattr(source, "eos_token_id", None), place)
    longer = [word for word in words if not isinstance(word, list) or len(word) != 1]
    for name, value in {"begin_suppress_tokens": begin, "bad_words_ids": longer}.items():
        if value:
            shown = textwrap.shorten(repr(value), 80)
            raise ValueError(
                f"{name}={shown} in {place} is not supported, only tokens that it bans everywhere: "
                "take it out there to decode without it"
            )
    named = token_id_list(getattr(source, "suppress_tokens", None), place, "suppress_tokens")
    listed = token_id_list([token for word in words for token in word], place, "bad_words_ids")
    return {*named, *(token for token in listed if token not in ends)}  # as transformers has it


def rotary_kinds(config: PretrainedConfig) -> list[dict[str, Any]]:
    """The rotary embeddings of a model, one or one for each type of layer; [] for none."""
    rotary = getattr(config.get_text_config(), "rope_parameters", None) or {}
    if "rope_type" in rotary:
        return [rotary]
    return [kind for kind in rotary.values() if isinstance(kind, dict)]


def context_length(config: PretrainedConfig) -> int | None:
    """Longest text that a model reads, in tokens; None where it states none."""
    length: int = getattr(config.get_text_config(), "max_position_embeddings", None) or 0
    for rotary in rotary_kinds(config) if length else ():
        original: Any = rotary.get("original_max_position_embeddings")
        if rotary.get("rope_type") == "longrope":
            # Past this length it rotates by other angles than the keys that are cached.
            length = min(length, original)
        elif rotary.get("rope_type") == "yarn" and rotary.get("factor"):
            # Some configs state the original length in both places.
            length = max(length, int(original * rotary["factor"]))
    return length or None
