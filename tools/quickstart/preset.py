"""The settings of a quickstart, one folder of TOML files a preset, and where it keeps what."""

from dataclasses import dataclass, field
from pathlib import Path
from string import Template

import anchored
from anchored.configs.config_file import from_table, read_config_file, toml_text
from anchored.eval.experiments.experiment import Prompt
from anchored.pretrain.tokens.bpe import SplitRule

from .corpus import CorpusConfig
from .protected_works import Work, cut_prompts, read_works

CONFIGS = Path(anchored.__file__).parent / "configs" / "quickstart"
RUNS = ("safe-stage1", "safe-stage2", "risky")


@dataclass(frozen=True, slots=True)
class Folders:
    """Paths under the quickstart's output folder."""

    root: Path

    @property
    def corpus(self) -> Path:
        return self.root / "corpus"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.jsonl"

    @property
    def works(self) -> Path:
        """The protected works as a corpus of passages."""
        return self.root / "works.jsonl"

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    def tokenizer(self, owner: str) -> Path:
        """owner: the model that has it for itself, "" for one that both models share."""
        return self.root / "tokenizer" / owner

    def shards(self, source: str, owner: str) -> Path:
        """Tokens of the owner's tokenizer."""
        return self.root / "shards" / owner / source

    def run(self, name: str) -> Path:
        return self.root / name

    def run_config(self, name: str) -> Path:
        return self.root / "configs" / f"{name}.toml"

    def model(self, name: str) -> Path:
        return self.root / "models" / name


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """What preset.toml says."""

    runs: str
    """The preset whose folder holds the training runs, a file each."""
    vocab_size: int
    """Tokens of the tokenizer that both models share, or of the risky model's own."""
    ks: list[float]
    """Budgets to sweep, in nats a token; a byte where the tokenizers differ."""
    seeds: list[int]
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

    def works(self) -> list[Work]:
        """The protected works that are used."""
        return read_works()[: self.num_works]

    def prompts(self) -> list[Prompt]:
        """One prompt a work."""
        return cut_prompts(self.works())

    def tokenizer_owner(self, model: str) -> str:
        """Whose tokenizer "safe" or "risky" has."""
        return model if self.safe_vocab_size else ""


def load_preset(name: str) -> Preset:
    """The preset's settings; ValueError for an unknown preset or key."""
    folder = CONFIGS / name
    if not folder.is_dir():
        known = ", ".join(sorted(path.name for path in CONFIGS.iterdir()))
        raise ValueError(f"preset must be one of {known}, got {name!r}")
    preset: Preset = from_table(Preset, read_config_file(folder / "preset.toml"))
    return preset


def run_config(preset: Preset, run: str, folders: Folders) -> str:
    """The TOML of one training run, whole, with the quickstart's folders filled in."""
    owner = preset.tokenizer_owner("risky" if run == "risky" else "safe")
    text = toml_text(read_config_file(CONFIGS / preset.runs / f"{run}.toml"))
    return Template(text).substitute(
        folder=folders.root.resolve().as_posix(),
        shards=folders.shards("", owner).resolve().as_posix(),
    )
