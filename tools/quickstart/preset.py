"""The settings of a quickstart: one folder of TOML files a preset."""

from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import anchored
from anchored.pretrain.toml_table import from_table, read_toml

from .corpus import CorpusConfig
from .tokenizer_training import SplitRule

CONFIGS = Path(anchored.__file__).parent / "configs" / "quickstart"
RUNS = ("safe-stage1", "safe-stage2", "risky")


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """What preset.toml says; the training runs have files of their own beside it."""

    vocab_size: int
    """Tokens of the tokenizer that both models share, or of the risky model's own."""
    ks: list
    """Budgets to sweep, in nats a token; a byte where the tokenizers differ."""
    seeds: list
    """One generation a work, setting and seed."""
    num_works: int
    """How many protected works are used."""
    max_new_tokens: int
    """Length of a generation: the horizon of its budget; four bytes each at byte level."""
    repetition_penalty: float
    """Of all generations; 1 is none."""
    num_excerpts: int
    """Held-out passages a source, for bits per byte."""
    excerpt_tokens: int
    """Tokens scored in a passage."""
    num_questions: int
    """Multiple-choice questions a held-out set."""
    safe_vocab_size: int = 0
    """Tokens of a tokenizer of the safe model's own, with GPT-2's rule; 0 where one is shared."""
    shows_effects: bool = True
    """Whether the models learn enough for what the method does to show."""
    corpus: CorpusConfig = field(default_factory=CorpusConfig)
    """How much text is gathered."""

    @property
    def tokenizers(self) -> dict[str, tuple[SplitRule, int]]:
        """(rule, vocabulary size) by owner: a model, or "" for both."""
        if not self.safe_vocab_size:
            return {"": ("llama3", self.vocab_size)}
        return {"safe": ("gpt2", self.safe_vocab_size), "risky": ("llama3", self.vocab_size)}

    def tokenizer_owner(self, model: str) -> str:
        """Whose tokenizer "safe" or "risky" has."""
        return model if self.safe_vocab_size else ""


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
