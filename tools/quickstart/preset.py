"""The settings of a quickstart and where it keeps what."""

from dataclasses import dataclass
from pathlib import Path
from string import Template

from anchored.configs.config_file import CONFIGS, Tables, from_table, read_config_file, toml_text
from anchored.eval.experiments.experiment import Prompt
from anchored.eval.experiments.sweep import Method

from .protected_works import Work, cut_prompts, read_works

PRESETS = CONFIGS / "quickstart"
STAGES = ("stage1", "stage2")


class Folders:
    """Paths under the quickstart's output folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.small_model = root / "models" / "safe"  # as it was read from its package
        self.risky = root / "models" / "risky"  # the adapter that changes it
        self.prompts = root / "prompts.jsonl"
        self.works = root / "works.jsonl"  # the protected works as a corpus of passages
        self.tasks = root / "tasks"
        # The pair with two tokenizers: what its safe model is made of, that model, its results.
        self.corpus = root / "corpus"
        self.tokenizer = root / "tokenizer"
        self.shards = root / "shards"
        self.miniature = root / "models" / "miniature"
        self.bytes = root / "bytes"

    def held_out(self, name: str) -> Path:
        """A set of texts that no model was trained on, a JSON line each."""
        return self.root / "heldout" / f"{name}.jsonl"

    def run_config(self, stage: str) -> Path:
        """The config of a training stage."""
        return self.root / "configs" / f"{stage}.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class BytePreset:
    """The pair of the safe model made here and the risky model, byte by byte."""

    ks: list[float]
    """Budgets to sweep, in nats per byte."""
    num_works: int
    max_new_tokens: int
    """Four bytes each."""
    vocab_size: int
    """Tokens of the safe model's tokenizer."""
    corpus_bytes: int
    """Text a source that it is trained on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """The settings in configs/quickstart/NAME/preset.toml."""

    ks: list[float]
    """Budgets of KL to sweep, in nats per token."""
    others: tuple[Method, ...]
    """Rules that bound every text, with their settings."""
    seeds: list[int]
    """One generation a work, setting and seed."""
    num_works: int
    """Number of protected works."""
    num_facts: int
    """Number of facts that are asked."""
    max_new_tokens: int
    """Length of a generation: the horizon of its budget."""
    repetition_penalty: float
    """Penalty of all generations; 1 is none."""
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
    preset: Preset = from_table(Preset, read_config_file(PRESETS / name / "preset.toml"))
    return preset


def stage_tables(name: str, stage: str) -> Tables:
    """The tables of one training stage, with ${folder} and ${shards} in it."""
    return read_config_file(PRESETS / name / f"{stage}.toml")


def run_config(name: str, stage: str, folders: Folders) -> str:
    """The TOML of one training stage, whole, with the quickstart's folders filled in."""
    text = toml_text(stage_tables(name, stage))
    return Template(text).substitute(
        folder=folders.root.resolve().as_posix(), shards=folders.shards.resolve().as_posix()
    )
