"""The settings of a quickstart: one folder of TOML files a preset."""

from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import anchored
from anchored.pretrain.toml_table import from_table, read_toml

from .corpus import CorpusConfig

CONFIGS = Path(anchored.__file__).parent / "configs" / "quickstart"
RUNS = ("safe-stage1", "safe-stage2", "risky")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """What preset.toml says; the training runs have files of their own beside it."""

    vocab_size: int
    """Tokens of the tokenizer that both models share."""
    ks: list
    """Budgets to sweep, in nats a token."""
    seeds: list
    """One generation a work, setting and seed."""
    num_works: int
    """How many protected works are used."""
    max_new_tokens: int
    """Length of a generation: the horizon of its budget."""
    repetition_penalty: float
    """Of all generations; 1 is none."""
    num_excerpts: int
    """Held-out passages a source, for bits per byte."""
    excerpt_tokens: int
    """Tokens scored in a passage."""
    num_questions: int
    """Multiple-choice questions a held-out set."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """How much text is gathered."""


def load_preset(name: str) -> Preset:
    """The preset's settings; ValueError for an unknown preset or key."""
    folder = CONFIGS / name
    if not folder.is_dir():
        known = ", ".join(sorted(path.name for path in CONFIGS.iterdir()))
        raise ValueError(f"preset must be one of {known}, got {name!r}")
    preset: Preset = from_table(Preset, read_toml(folder / "preset.toml"))
    return preset


def run_config(preset: str, run: str, folder: Path) -> str:
    """The TOML of one training run with the quickstart's folder filled in."""
    template = Template((CONFIGS / preset / f"{run}.toml").read_text())
    return template.substitute(folder=folder.resolve().as_posix())
