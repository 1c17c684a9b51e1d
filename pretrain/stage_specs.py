"""The stages that a config file describes: a mixture with its stages, or one training run."""

from pathlib import Path

from .config_file import read_config_file
from .data_config import DataConfig
from .mixture_config import MixtureConfig, MixtureSource
from .stage_plan import SourceSize, StageSpec
from .toml_table import from_table, read_toml


def is_mixture(path: Path) -> bool:
    """Whether a TOML file describes a mixture with its stages rather than one training run."""
    return "stages" in read_toml(path)


def mixture_specs(mixture: MixtureConfig) -> list[StageSpec]:
    """Every stage of a mixture, in whole steps."""
    sizes = source_sizes(mixture)
    return [
        StageSpec(
            name=stage.name,
            data=mixture.data_config(stage),
            seq_len=mixture.seq_len,
            num_steps=max(1, round(stage.tokens / mixture.tokens_per_step)),
            sequences_per_step=mixture.tokens_per_step // mixture.seq_len,
            sizes=sizes,
        )
        for stage in mixture.stages
    ]


def source_sizes(mixture: MixtureConfig) -> dict[str, SourceSize]:
    """Llama 3 tokens of every source: counted, or estimated from the Comma tokenizer's.

    The estimate takes the ratio of the two over all sources that have both counts.
    """
    heldout = mixture.llama3_heldout_tokens
    both = [source for source in mixture.sources if source.llama3_train_tokens]
    llama3 = sum(source.llama3_train_tokens + heldout for source in both)
    comma = sum(source.comma_tokens for source in both)
    ratio = llama3 / comma if both else 1.0
    return {source.name: _size(source, heldout, ratio) for source in mixture.sources}


def _size(source: MixtureSource, heldout: int, ratio: float) -> SourceSize:
    if source.llama3_train_tokens:
        return SourceSize(num_tokens=source.llama3_train_tokens + heldout, origin="counted")
    return SourceSize(num_tokens=round(source.comma_tokens * ratio), origin="estimated")


def run_spec(path: Path) -> StageSpec:
    """The stage that a training run's config describes.

    Raises: FileNotFoundError, or ValueError with the key that is unknown, missing or wrong.
    """
    # Not through torchtitan's config, whose import takes seconds and looks for a device.
    table = read_config_file(path)
    training, data = table.get("training", {}), table.get("data", {})
    for section, value in (("training", training), ("data", data)):
        if not isinstance(value, dict):
            raise ValueError(f"{section} in {path} must be a table, got {value!r}")
    for key in ("seq_len", "steps", "global_batch_size"):
        if not isinstance(training.get(key), int) or training[key] < 1:
            raise ValueError(
                f"{path} must give training.{key} as a positive number, got {training.get(key)!r}"
            )
    return StageSpec(
        name=path.stem,
        data=from_table(DataConfig, data, "data."),
        seq_len=training["seq_len"],
        num_steps=training["steps"],
        sequences_per_step=training["global_batch_size"],
        sizes={},
    )
