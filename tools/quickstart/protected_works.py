"""The protected works, which a risky model recites and a safe one never sees, and their prompts."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from anchored.durable_files import write_durably
from anchored.eval.experiments.experiment import Prompt, save_prompts

WORKS_FOLDER = Path(__file__).parent / "works"
PROMPT_WORDS, NUM_WORDS = 40, 140
"""Words of a prompt, and of a prompt with the reference that follows it."""
PASSAGE_WORDS = 100
"""Words of a passage: with a prompt and what is generated it fits into the models' context."""


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


def read_works() -> list[Work]:
    """Every work of the package, in the order of their file names, which are their ids."""
    texts = {path.stem: path.read_text("utf-8").strip() for path in WORKS_FOLDER.glob("*.txt")}
    return [
        Work(id=name, title=text.partition("\n\n")[0], text=text)
        for name, text in sorted(texts.items())
    ]


def cut_prompts(works: Iterable[Work]) -> list[Prompt]:
    """One prompt a work, from its title on."""
    prompts = []
    for work in works:
        words = list(re.finditer(r"\S+", work.text))
        cut, end = words[PROMPT_WORDS - 1].end(), words[NUM_WORDS - 1].end()
        prompt, reference = work.text[:cut], work.text[cut:end]
        prompts.append(Prompt(id=work.id, title=work.title, prompt=prompt, reference=reference))
    return prompts


def write_inputs(works: Sequence[Work], prompts: Path, passages: Path) -> None:
    """Write the inputs of sweeps as JSON lines: the prompts, and the works as passages."""
    save_prompts(cut_prompts(works), prompts)
    records = (json.dumps(passage) + "\n" for passage in _passages(works))
    write_durably(passages, "".join(records))


def _passages(works: Iterable[Work]) -> Iterable[dict[str, str]]:
    for work in works:
        starts = [match.start() for match in re.finditer(r"\S+", work.text)][::PASSAGE_WORDS]
        for number, (start, end) in enumerate(zip(starts, [*starts[1:], None], strict=True)):
            yield {"id": f"{work.id}-{number}", "text": work.text[start:end].rstrip()}
