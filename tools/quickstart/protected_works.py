"""The protected works, which a risky model recites and a safe one never sees, and their prompts."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from anchored.eval.experiments.experiment import Prompt

WORKS_FOLDER = Path(__file__).parent / "works"


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One work; `text` is the title, a blank line and the body, as a model is trained on it."""

    id: str
    title: str
    text: str

    @property
    def body(self) -> str:
        """The text without its title."""
        return self.text.partition("\n\n")[2]


def read_works(folder: Path = WORKS_FOLDER) -> list[Work]:
    """Every work of the folder, in the order of their file names, which are their ids.

    Raises FileNotFoundError if there is none, ValueError if a file lacks the blank second line.
    """
    works = [_read_work(path) for path in sorted(folder.glob("*.txt"))]
    if not works:
        raise FileNotFoundError(f"no protected works in {folder}")
    return works


def _read_work(path: Path) -> Work:
    text = path.read_text(encoding="utf-8").strip()
    title, separator, _ = text.partition("\n\n")
    if not separator or "\n" in title:
        raise ValueError(f"{path} must be a title, a blank line and a text")
    return Work(id=path.stem, title=title, text=text)


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
