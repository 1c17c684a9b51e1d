"""Levels by name: what a caller asks for, or a ledger names, becomes a level of the pair."""

from typing import Any, Literal

from .byte.byte_level import ByteLevel
from .byte.byte_settings import ByteSettings
from .byte.prompt_cache import PromptCache
from .choices import LevelName
from .level import Level
from .model_pair import ModelPair
from .prompt_ratios import PromptRatios
from .record_fields import field_error
from .token_level import TokenLevel


def choose_level(
    pair: ModelPair,
    name: LevelName | Literal["auto"],
    settings: ByteSettings | None = None,
    prompt_cache: PromptCache | None = None,
    prompt_ratios: PromptRatios | None = None,
) -> Level:
    """The level of that name; "auto" takes tokens where both models have the same ones.

    settings, prompt_cache: of the byte level. prompt_ratios: those of all prompts, where they are
    known before. Raises ValueError for another name, for a level at
    which the pair cannot be decoded, and for settings that the level does not have.
    """
    if name not in ("auto", "token", "byte"):
        raise ValueError(f'level must be "auto", "token" or "byte", got {name!r}')
    if name == "byte" or (name == "auto" and pair.risky_tokenizer is not None):
        return ByteLevel(pair, settings or ByteSettings(), prompt_cache, prompt_ratios)
    if settings is not None or prompt_cache is not None:
        raise ValueError(
            'byte settings and a prompt cache need level="byte": this pair decodes tokens'
        )
    return TokenLevel(pair, prompt_ratios)


def recorded_level(pair: ModelPair, name: str, settings: dict[str, Any]) -> Level:
    """The level that a ledger records; ValueError if the pair cannot be decoded like that."""
    if name == "token":
        return TokenLevel(pair)
    if name != "byte":
        raise ValueError(f'level must be "token" or "byte", got {name!r}')
    own = {key: value for key, value in settings.items() if key != "tokenizers"}
    if error := field_error(ByteSettings, own):
        raise ValueError(f"level_settings: {error}")
    level = ByteLevel(pair, ByteSettings(**own))
    if level.settings()["tokenizers"] != settings.get("tokenizers"):
        raise ValueError("the tokenizers, or their stop tokens, are not the recorded ones")
    return level
