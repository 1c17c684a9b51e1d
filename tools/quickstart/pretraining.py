"""A safe model made here: TinyComma's shape in miniature, by the pipeline that makes TinyComma."""

import tomllib

from transformers import AutoModelForCausalLM

from anchored.durable_files import write_durably
from anchored.pretrain.export import export_checkpoint
from anchored.pretrain.program import launch
from anchored.pretrain.tokens.bpe import save_tokenizer, train_tokenizer
from anchored.pretrain.tokens.writer import write_token_shards

from .corpus import LICENSE, read_sources
from .preset import Folders, Preset, run_config

CONTEXT_LENGTH = 512
"""Tokens that the exported model accepts: a prompt and what is generated are longer than its
training windows."""


def make_tokenizer(folders: Folders, preset: Preset) -> None:
    """Train the miniature's tokenizer on what it will read."""
    texts = [text for source in read_sources(folders.corpus) for text in source.texts]
    tokenizer = train_tokenizer(texts, preset.bytes.vocab_size)
    save_tokenizer(tokenizer, folders.tokenizer, model_max_length=CONTEXT_LENGTH)


def write_shards(folders: Folders) -> None:
    """Write the token shards of every source that has none."""
    for source in read_sources(folders.corpus):
        folder = folders.shards / source.name
        if not folder.exists():  # shards appear when they are complete
            write_token_shards(
                folder,
                source.texts,
                folders.tokenizer / "tokenizer.json",
                source=source.name,
                license=LICENSE,
                revision=source.revision,
            )


def train(folders: Folders, preset_name: str, stage: str) -> None:
    """Train one stage in another process; one that was interrupted resumes."""
    config = folders.run_config(stage)
    write_durably(config, run_config(preset_name, stage, folders))
    launch(config)


def export(folders: Folders) -> None:
    """Export the second stage's last checkpoint and load it back with transformers."""
    if not folders.miniature.exists():  # an export appears only when it is complete
        steps = tomllib.loads(folders.run_config("stage2").read_text())["training"]["steps"]
        export_checkpoint(
            folders.root / "stage2" / "checkpoint" / f"step-{steps}",
            folders.tokenizer,
            folders.miniature,
            max_position_embeddings=CONTEXT_LENGTH,
        )
    AutoModelForCausalLM.from_pretrained(folders.miniature)
