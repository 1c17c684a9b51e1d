"""Prompts cut from the protected works, each with the text that would be a copy."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .protected_works import Work


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A span of a work and what follows: `prompt + reference` is a substring of the work.

    The white space between the two belongs to `reference`, so that a tokenizer sees the word
    boundary where training put it.
    """

    id: str
    title: str
    prompt: str
    reference: str


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptConfig:
    """Where prompts are cut; the words of a work include its title."""

    offset_words: int = 0
    """Words skipped before the prompt."""
    prompt_words: int = 45
    reference_words: int = 100

    def __post_init__(self) -> None:
        if self.offset_words < 0:
            raise ValueError(f"offset_words must be >= 0, got {self.offset_words}")
        if self.prompt_words < 1:
            raise ValueError(f"prompt_words must be >= 1, got {self.prompt_words}")
        if self.reference_words < 1:
            raise ValueError(f"reference_words must be >= 1, got {self.reference_words}")

    @property
    def num_words(self) -> int:
        """Words a work needs."""
        return self.offset_words + self.prompt_words + self.reference_words


def cut_prompts(works: Iterable[Work], config: PromptConfig) -> list[Prompt]:
    """One prompt a work. Raises ValueError, naming the work, where a work has too few words."""
    return [_cut_prompt(work, config) for work in works]


def _cut_prompt(work: Work, config: PromptConfig) -> Prompt:
    words = list(re.finditer(r"\S+", work.text))
    if len(words) < config.num_words:
        raise ValueError(f"{work.id} must have >= {config.num_words} words, got {len(words)}")
    start = words[config.offset_words].start()
    cut = words[config.offset_words + config.prompt_words - 1].end()
    end = words[config.num_words - 1].end()
    return Prompt(
        id=work.id, title=work.title, prompt=work.text[start:cut], reference=work.text[cut:end]
    )
