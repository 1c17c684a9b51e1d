"""An experiment: prompts, settings, seeds and held-out texts, and the folder that records it."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal

from ... import Anchored, RiskyOnly, SafeOnly
from ...decode.rules.rule import Rule
from ...decode.settings import LevelName
from ...durable_files import write_durably
from ...inputs import read_prompts
from ..recorded_texts import RISKY, SAFE, evaluation_rows, file_name
from ..retrieval.passages import PassageIndex

Rows = list[dict[str, Any]]
LOCKS = "locks"


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to decode: a row of the results table."""

    name: str
    rule: Rule
    k: float | None = None
    """Nats per step of a setting that sweeps the KL budget of Anchored Decoding."""
    method: str = ""
    """The method of the setting, if several are compared."""

    @property
    def file_name(self) -> str:
        """The name in the names of files and folders."""
        return file_name(self.name)


def budget_sweep(ks: Sequence[float], others: Iterable[Setting] = ()) -> tuple[Setting, ...]:
    """The safe model alone, Anchored Decoding at each k, other settings, the risky model alone."""
    sweep = [Setting(f"k={k:g}", Anchored(k=k), k) for k in ks]
    return (Setting(SAFE, SafeOnly()), *sweep, *others, Setting(RISKY, RiskyOnly()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A span of a work and its continuation: `prompt + reference` is a substring of the work. White
    space between the two belongs to `reference`, so that a tokenizer sees the word boundary as in
    training."""

    id: str
    title: str
    prompt: str
    reference: str
    domain: str = ""
    """The kind of text, such as "books"."""
    passage: str | None = None
    """The nearest passage of a corpus of protected texts, for the rules that read one."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Other entries of its record, for measures of the texts: a work's characters, a group."""


_PROMPT_KEYS: Final = tuple(each.name for each in fields(Prompt) if each.name != "about")
_NEEDED: Final = ("id", "prompt", "reference")
_ID: Final = re.compile(r"[\w.=+-]+")


def load_prompts(path: Path) -> list[Prompt]:
    """The prompts of a JSON-lines file; entries without a field of `Prompt` go into its `about`.
    Raises OSError, or ValueError that names file and line for one that is no prompt."""
    prompts = []
    for line in read_prompts(path, needs=("id", "reference")):
        record = {"title": str(line.id), **line.record(), "id": str(line.id)}
        if not _ID.fullmatch(record["id"]):
            raise ValueError(f"{path}: an id names a file, got {record['id']!r}")
        named = {name: record.pop(name) for name in _PROMPT_KEYS if name in record}
        prompts.append(Prompt(**named, about=record))
    check_unique(f"{path}: id", [prompt.id for prompt in prompts])
    return prompts


def save_prompts(prompts: Sequence[Prompt], path: Path) -> None:
    """Write a file that `load_prompts` reads, one prompt per line."""
    lines = []
    for prompt in prompts:
        values = {name: getattr(prompt, name) for name in _PROMPT_KEYS}
        named = {name: value for name, value in values.items() if value or name in _NEEDED}
        lines.append(json.dumps({**prompt.about, **named}) + "\n")
    write_durably(path, "".join(lines))


def check_unique(what: str, names: Sequence[str]) -> None:
    """Raise ValueError for a name that occurs twice."""
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{what} {name!r} occurs twice")


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentOptions:
    """Options of texts and measures, the same in a sweep's file and in an experiment."""

    level: LevelName | Literal["auto"] = "auto"
    """The unit of a step; auto takes tokens if the tokenizers share them."""
    max_new_tokens: int = 200
    """Length of a generation; four bytes each at byte level."""
    temperature: float = 0.7
    repetition_penalty: float = 1.1
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    """One generation per prompt, setting and seed."""
    num_excerpts: int = 32
    """Held-out passages per set, for bits per byte."""
    excerpt_tokens: int = 128
    """Tokens scored in a passage."""
    batch_size: int = 48
    """Texts that are decoded together."""

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return {each.name: getattr(self, each.name) for each in fields(ExperimentOptions)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment(ExperimentOptions):
    """All that decides the figures, apart from the models; records lie in `folder`."""

    folder: Path
    prompts: Sequence[Prompt]
    settings: tuple[Setting, ...]
    """p_s and p_r are among them, and those with a k ascend: see `budget_sweep`."""
    held_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Texts that no model has read, by the name of their set; without any, no utility is known."""
    extra: str = ""
    """The held-out set on a subject that only the risky model has learned: the utility to win."""
    task_folder: Path = Path()
    """YAML files of lm-eval."""
    tasks: tuple[str, ...] = ()
    """Multiple-choice tasks among these."""
    index: PassageIndex | None = None
    """Passages for held-out texts, for the rules that read one."""

    @property
    def budgets(self) -> list[Setting]:
        """The settings that have a budget."""
        return [setting for setting in self.settings if setting.k is not None]

    @property
    def locks(self) -> Path:
        """Folder of the locks by which processes share the work."""
        return self.folder / LOCKS

    def rows_file(self, name: str) -> Path:
        """File of the rows that a measure records under this name."""
        return self.folder / "measurements" / f"{name}.json"

    def read_rows(self, name: str) -> Rows:
        """The rows that a measure recorded under this name; [] if it was not taken."""
        path = self.rows_file(name)
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []

    @property
    def copying(self) -> Rows:
        """A row of copying per text, from evaluation/copying.json."""
        return evaluation_rows(self.folder, "copying")

    def write_rows(self, name: str, rows: Rows) -> None:
        """Record a measure's rows."""
        write_durably(self.rows_file(name), json.dumps(rows))
