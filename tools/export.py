"""Export a checkpoint: anchored export --checkpoint RUN/checkpoint/step-9 --tokenizer T ..."""

from anchored.pretrain.export import ExportConfig, run

__all__ = ["ExportConfig", "run"]
