"""The ends and the longest length of a model's texts, by its configs."""

import logging
import textwrap
from numbers import Integral
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

logger = logging.getLogger(__name__)


def token_id_list(value: object, place: str) -> list[int]:
    """The token ids of an `eos_token_id`, [] for None; ValueError, with its place, for others."""
    listed: Any = value if isinstance(value, list | tuple) else [value]
    if value is None:
        return []
    if not all(isinstance(i, Integral) and not isinstance(i, bool) and int(i) >= 0 for i in listed):
        shown = textwrap.shorten(repr(value), 80)
        raise ValueError(
            f"eos_token_id must be a token id or a list of them, got {shown} in {place}"
        )
    return [int(token) for token in listed]


def declared_ends(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast
) -> set[int]:
    """Tokens at which a model ends a text, by any of the places that say so.

    Those that the tokenizer does not know, or of which the model has no row, are left out. Raises
    ValueError, in one line, for what is no token id.
    """
    declared, num_rows = (
        _declared(name, model, tokenizer),
        model.config.get_text_config().vocab_size,
    )
    known = tokenizer.backend_tokenizer.id_to_token
    return {token for token in declared if token < num_rows and known(token) is not None}


def log_missing_ends(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Log, in one line, ends of texts that never come; ValueError for what is no token id."""
    if model.generation_config is None:
        logger.warning("the %s model has no generation_config that says where texts end", name)
    declared = _declared(name, model, tokenizer)
    if missing := sorted(declared - declared_ends(name, model, tokenizer)):
        listed = ", ".join(map(str, missing))
        logger.warning("the %s model ends texts at token %s, which it does not have", name, listed)


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
