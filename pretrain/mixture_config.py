"""A mixture of sources for several stages: where the text comes from and how much of it is read."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .data_config import DataConfig, DataSource
from .toml_table import from_table, read_toml


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSource:
    """One source."""

    name: str
    """Names its folder of shards, and keys the order in which it is read."""
    dataset: str
    """Hub dataset."""
    revision: str
    """Its commit."""
    weights: dict[str, float]
    """By stage; a stage that is not named does not read the source."""
    llama3_train_tokens: int = 0
    """Counted with the Llama 3 tokenizer, without the counter's held-out part; 0: not counted."""
    comma_tokens: float = 0.0
    """Tokens of the Comma tokenizer; with them the number of Llama 3 tokens is estimated."""

    def __post_init__(self) -> None:
        if not self.comma_tokens > 0:
            raise ValueError(
                f"comma_tokens of source {self.name} must be positive, got {self.comma_tokens}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureStage:
    """One stage of training."""

    name: str
    tokens: float
    """What the stage is to read; rounded to whole steps."""
    seed: int
    """Keys the order of windows."""

    def __post_init__(self) -> None:
        if not self.tokens > 0:
            raise ValueError(f"tokens of stage {self.name} must be positive, got {self.tokens}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """What time and memory depend on."""

    num_parameters: int
    num_embedding_parameters: int
    """Of the input embedding, which is a look-up and takes no arithmetic."""
    num_layers: int
    hidden_size: int

    def flops_per_token(self, seq_len: int) -> float:
        """Training FLOPs a token: 6 a parameter, and attention that is counted as not causal.

        Source: the formula behind the MFU that torchtitan logs (Chowdhery et al. 2022, appendix
        B, without the input embedding).
        """
        dense = 6 * (self.num_parameters - self.num_embedding_parameters)
        return dense + 12 * self.num_layers * self.hidden_size * seq_len


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """The machine that a plan is timed on."""

    num_gpus: int
    peak_flops: float
    """Of one GPU in bfloat16, dense, FLOP/s."""
    mfu: float
    """Share of the peak that training reaches, in (0, 1]."""

    def __post_init__(self) -> None:
        if self.num_gpus < 1:
            raise ValueError(f"num_gpus must be at least 1, got {self.num_gpus}")
        if not self.peak_flops > 0:
            raise ValueError(f"peak_flops must be positive, got {self.peak_flops}")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu must be in (0, 1], got {self.mfu}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureConfig:
    """Everything that decides what is read in which stage."""

    shards_folder: str
    """Holds one folder of token shards a source, by its name."""
    seq_len: int
    """Tokens in a sequence."""
    tokens_per_step: int
    """A multiple of seq_len."""
    max_epochs: float
    """No source may be read more often over all stages together."""
    model: ModelSize
    hardware: Hardware
    stages: tuple[MixtureStage, ...]
    sources: tuple[MixtureSource, ...]
    weight_unit: Literal["tokens", "documents"] = "tokens"
    """A weight is a share of tokens, or (as in lingua) the chance to draw one of its documents."""
    llama3_heldout_tokens: int = 0
    """What whoever counted llama3_train_tokens had held out of every source."""
    licences: tuple[str, ...] = field(default=())
    """Allow-list for tokenising; shell patterns."""

    def __post_init__(self) -> None:
        if self.seq_len < 1 or self.tokens_per_step < 1 or self.tokens_per_step % self.seq_len:
            raise ValueError(
                f"tokens_per_step must be a multiple of seq_len, got {self.tokens_per_step} "
                f"and {self.seq_len}"
            )
        if not self.max_epochs > 0:
            raise ValueError(f"max_epochs must be positive, got {self.max_epochs}")
        self._check_names()

    def source(self, name: str) -> MixtureSource:
        """The source of that name. Raises ValueError if there is none."""
        for source in self.sources:
            if source.name == name:
                return source
        known = ", ".join(source.name for source in self.sources)
        raise ValueError(f"the mixture has no source {name}; known: {known}")

    def data_config(self, stage: MixtureStage) -> DataConfig:
        """The [data] section of the stage's run: with the same shards, the same plan hash."""
        sources = tuple(
            DataSource(
                name=source.name,
                path=str(Path(self.shards_folder) / source.name),
                weight=source.weights[stage.name],
            )
            for source in self.sources
            if stage.name in source.weights
        )
        return DataConfig(
            sources=sources,
            weight_unit=self.weight_unit,
            seed=stage.seed,
            max_epochs=self.max_epochs,
        )

    def _check_names(self) -> None:
        for kind, names in (
            ("stages", [stage.name for stage in self.stages]),
            ("sources", [source.name for source in self.sources]),
        ):
            if not names or len(set(names)) != len(names):
                raise ValueError(f"{kind} must be at least one, with different names, got {names}")
        stages = {stage.name for stage in self.stages}
        for source in self.sources:
            if unknown := sorted(set(source.weights) - stages):
                raise ValueError(f"source {source.name} has a weight for no stage: {unknown[0]}")


def load_mixture(path: Path) -> MixtureConfig:
    """Read a mixture's TOML.

    Raises: FileNotFoundError, or ValueError with the key that is unknown, missing or wrong.
    """
    config: MixtureConfig = from_table(MixtureConfig, read_toml(path))
    return config
