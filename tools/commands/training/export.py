"""The command that exports a training checkpoint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from anchored.inputs import check_input

from ..files import check_new_folder


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Export a checkpoint: anchored export --checkpoint STEP --tokenizer T --output MODEL

    Writes a Hugging Face folder with the weights, the tokenizer and a model card.
    """

    checkpoint: Path
    """Step folder of a run, such as runs/tinycomma/checkpoint/step-3219."""
    tokenizer: Path
    """Folder with the tokenizer.json that the run's data was tokenized by."""
    output: Path
    """New folder for the model."""
    max_position_embeddings: int = 0
    """Longest context that the model declares; 0 takes the length it was trained at."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the stored weights."""
    average_last: int = 1
    """Checkpoints whose weights are averaged: this one and the whole ones before it."""

    def __post_init__(self) -> None:
        for folder in (self.checkpoint, self.tokenizer):
            check_input(folder, "folder")


def run(config: ExportConfig) -> int:
    """Export as `config` says and print the folder; returns the exit status."""
    check_new_folder(config.output)
    from anchored.pretrain.export import export_checkpoint

    export_checkpoint(
        config.checkpoint,
        config.tokenizer,
        config.output,
        max_position_embeddings=config.max_position_embeddings,
        dtype=config.dtype,
        average_last=config.average_last,
    )
    print(config.output)
    return 0
