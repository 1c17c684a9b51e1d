"""An experiment: prompts, settings, seeds and held-out texts, and the folder that records it."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ... import Anchored, RiskyOnly, SafeOnly
from ...decode.rules.rule import Rule
from ...decode.settings import LevelName
from ...durable_files import write_durably
from ..recorded_texts import RISKY, SAFE, file_name
from ..retrieval.passages import PassageIndex

Rows = list[dict[str, Any]]
CLAIMS = "claims"


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to decode: a row of the results table."""

    name: str
    rule: Rule
    k: float | None = None
    """Of the settings that sweep the budget of Anchored Decoding: their nats a step."""
    method: str = ""
    """What it is a setting of, where several methods are compared."""

    @property
    def file_name(self) -> str:
        """The name, as files and folders bear it."""
        return file_name(self.name)


def budget_sweep(ks: Sequence[float]) -> tuple[Setting, ...]:
    """The safe model alone, Anchored Decoding at each k, the risky model alone."""
    sweep = [Setting(f"k={k:g}", Anchored(k=k), k) for k in ks]
    return (Setting(SAFE, SafeOnly()), *sweep, Setting(RISKY, RiskyOnly()))


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
    domain: str = ""
    """What kind of text it is, as "books"."""
    passage: str | None = None
    """What a corpus of protected texts holds nearest to it, for the rules that read one."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """What else its record says, for those who measure the texts: a work's characters, a group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """All that decides the figures, but for the models; what is recorded lies in `folder`."""

    folder: Path
    prompts: Sequence[Prompt]
    settings: tuple[Setting, ...]
    """p_s and p_r are among them, and those with a k ascend: see `budget_sweep`."""
    seeds: Sequence[int]
    """One generation a prompt, setting and seed."""
    max_new_tokens: int
    repetition_penalty: float
    temperature: float = 0.7
    level: LevelName | Literal["auto"] = "auto"
    """What is decoded step by step; auto takes tokens where the tokenizers share them."""
    held_out: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Texts that no model has read, by the name of their set; without any, no utility is known."""
    extra: str = ""
    """The held-out set of what the risky model alone has learned: here is utility to win."""
    num_excerpts: int = 32
    """Passages of a held-out set, for bits per byte."""
    excerpt_tokens: int = 128
    """Tokens scored in a passage."""
    task_folder: Path = Path()
    """YAML files of lm-eval."""
    tasks: tuple[str, ...] = ()
    """Multiple-choice tasks among these."""
    index: PassageIndex | None = None
    """Where passages of held-out texts are found, for the rules that read one."""
    batch_size: int = 48

    @property
    def budgets(self) -> list[Setting]:
        """The settings that have a budget."""
        return [setting for setting in self.settings if setting.k is not None]

    @property
    def claims(self) -> Path:
        """Where processes that share the work say what they are at."""
        return self.folder / CLAIMS

    def rows_file(self, name: str) -> Path:
        """Where a measure records rows under this name."""
        return self.folder / "measurements" / f"{name}.json"

    def read_rows(self, name: str) -> Rows:
        """The rows that a measure recorded under this name; none where it was not taken."""
        path = self.rows_file(name)
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else []

    def write_rows(self, name: str, rows: Rows) -> None:
        """Record a measure's rows."""
        path = self.rows_file(name)
        write_durably(path, json.dumps(rows))


logger = logging.getLogger(__name__)


class Steps:
    """Remembers finished steps in steps.json under `folder`, for one set of settings.

    Several processes may begin a folder at once; one of them runs the steps. Raises ValueError when
    the folder belongs to other settings, or to somebody else: it holds something, and no
    steps.json.
    """

    def __init__(self, folder: Path, settings: str, *, owner: str) -> None:
        """owner: what writes such folders, for errors."""
        self._owner = owner
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "steps.json"
        self._settings = hashlib.sha256(settings.encode()).hexdigest()
        self._count = 0
        self.seconds: dict[str, float] = {}
        # Looked for first: what another process of this run leaves comes after its steps.json.
        others = [file for file in folder.iterdir() if not file.name.startswith(self._path.name)]
        if self._path.exists():
            self.seconds = self._finished()
        elif others:
            raise ValueError(
                f"{folder} holds files that are no {owner}'s: name another folder with --output"
            )
        else:
            self._save()  # from here on the folder is this run's, however it ends

    def run(self, name: str, work: Callable[[], None]) -> None:
        """Do `work` unless it was finished before; it must be safe to start again."""
        self._count += 1
        if name in self.seconds:
            logger.info("[%d] %s: done before, skipped", self._count, name)
            return
        logger.info("[%d] %s", self._count, name)
        start = time.perf_counter()
        work()
        self.seconds[name] = round(time.perf_counter() - start, 2)
        self._save()

    def forget(self) -> None:
        """Do all steps again when they are run next."""
        self.seconds = {}
        self._save()

    def _finished(self) -> dict[str, float]:
        """Seconds by step, as recorded for the same settings."""
        try:
            record = json.loads(self._path.read_text())
            settings, seconds = record["settings"], dict(record["seconds"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._path} is not what a {self._owner} writes: "
                "name another folder with --output"
            ) from None
        if settings != self._settings:
            raise ValueError(
                f"{self._path.parent} holds a run with other settings: "
                "remove it or name another folder with --output"
            )
        return seconds

    def _save(self) -> None:
        record = {"settings": self._settings, "seconds": self.seconds}
        write_durably(self._path, json.dumps(record))
