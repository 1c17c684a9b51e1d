"""The settings of a quickstart and where it keeps what."""

from dataclasses import dataclass
from pathlib import Path
from string import Template

import anchored
from anchored.configs.config_file import from_table, read_config_file, toml_text
from anchored.eval.experiments.experiment import Prompt

from .protected_works import Work, cut_prompts, read_works

CONFIGS = Path(anchored.__file__).parent / "configs" / "quickstart"
STAGES = ("stage1", "stage2")


@dataclass(frozen=True, slots=True)
class Folders:
    """Paths under the quickstart's output folder."""

    root: Path

    @property
    def small_model(self) -> Path:
        """The safe model as it was read from its package."""
        return self.root / "models" / "safe"

    @property
    def risky(self) -> Path:
        """The adapter that makes the safe model the risky one."""
        return self.root / "models" / "risky"

    @property
    def miniature(self) -> Path:
        """The safe model made here."""
        return self.root / "models" / "miniature"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.jsonl"

    @property
    def works(self) -> Path:
        """The protected works as a corpus of passages."""
        return self.root / "works.jsonl"

    def held_out(self, name: str) -> Path:
        """A set of texts that no model was trained on, a JSON line each."""
        return self.root / "heldout" / f"{name}.jsonl"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def bytes(self) -> Path:
        """What the pair with two tokenizers wrote."""
        return self.root / "bytes"

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def tokenizer(self) -> Path:
        """The miniature's own."""
        return self.root / "tokenizer"

    @property
    def shards(self) -> Path:
        return self.root / "shards"

    def run_config(self, stage: str) -> Path:
        return self.root / "configs" / f"{stage}.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class BytePreset:
    """The pair of the safe model made here and the risky model, byte by byte."""

    ks: list[float]
    """Budgets to sweep, in nats a byte."""
    num_works: int
    max_new_tokens: int
    """Four bytes each."""
    vocab_size: int
    """Tokens of the safe model's tokenizer."""
    corpus_bytes: int
    """Text a source that it is trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """What configs/quickstart/NAME/preset.toml says."""

    ks: list[float]
    """Budgets to sweep, in nats a token."""
    seeds: list[int]
    """One generation a work, setting and seed."""
    num_works: int
    """How many protected works are used."""
    num_facts: int
    """How many facts are asked."""
    max_new_tokens: int
    """Length of a generation: the horizon of its budget."""
    repetition_penalty: float
    """Of all generations; 1 is none."""
    num_excerpts: int
    """Held-out passages a set, for bits per byte."""
    excerpt_tokens: int
    """Tokens scored in a passage."""
    epochs: int
    """Times that a risky model trained here reads the works and the facts."""
    bytes: BytePreset
    shows_effects: bool = True
    """Whether the models learn enough for what the method does to show."""

    def works(self) -> list[Work]:
        """The protected works that are used."""
        return read_works()[: self.num_works]

    def prompts(self) -> list[Prompt]:
        """One prompt a work."""
        return cut_prompts(self.works())


def load_preset(name: str) -> Preset:
    """The settings of a folder of configs/quickstart; ValueError for an unknown key."""
    preset: Preset = from_table(Preset, read_config_file(CONFIGS / name / "preset.toml"))
    return preset


def run_config(name: str, stage: str, folders: Folders) -> str:
    """The TOML of one training stage, whole, with the quickstart's folders filled in."""
    text = toml_text(read_config_file(CONFIGS / name / f"{stage}.toml"))
    return Template(text).substitute(
        folder=folders.root.resolve().as_posix(), shards=folders.shards.resolve().as_posix()
    )
