"""The command that exports a training checkpoint."""

from anchored.pretrain.export import export_checkpoint

from ..files import check_new_folder
from .training_options import ExportConfig


def run(config: ExportConfig) -> int:
    """Export as `config` says and print the folder; returns the exit status."""
    check_new_folder(config.output)
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
