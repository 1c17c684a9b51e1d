"""The models of a quickstart: corpus, tokenizers, shards, three training runs and the export."""

import tomllib

from transformers import AutoModelForCausalLM, AutoTokenizer

from anchored.pretrain.export import export_checkpoint
from anchored.pretrain.launch import launch
from anchored.pretrain.tokens.bpe import save_tokenizer, train_tokenizer
from anchored.pretrain.tokens.writer import write_token_shards

from .corpus import Corpus, Source, gather, read, write
from .documents import Document
from .preset import Folders, Preset, run_config

CONTEXT_LENGTH = 512
"""Tokens that the exported models accept; questions are longer than training windows."""
WORKS_SOURCE = "works"
FINAL_RUNS = {"safe": "safe-stage2", "risky": "risky"}


def gather_corpus(folders: Folders, preset: Preset) -> None:
    """Write the mixture and the extra source as JSON lines."""
    write(gather(preset.corpus), folders.corpus)


def make_tokenizers(folders: Folders, preset: Preset) -> None:
    """Train on the mixture: neither the extra source nor the works are seen."""
    sources = read(folders.corpus).sources
    texts = [document.text for source in sources for document in source.documents]
    for owner, (rule, vocab_size) in preset.tokenizers.items():
        save_tokenizer(
            train_tokenizer(texts, vocab_size, rule),
            folders.tokenizer(owner),
            model_max_length=CONTEXT_LENGTH,
        )


def tokenize(folders: Folders, preset: Preset) -> None:
    """Write token shards of every source and of the protected works, with every tokenizer."""
    corpus: Corpus = read(folders.corpus)
    documents = tuple(Document(id=work.id, text=work.text) for work in preset.works())
    works = Source(WORKS_SOURCE, "CC0-1.0", origin="", revision="1", documents=documents)
    for owner in preset.tokenizers:
        for source in (*corpus.sources, corpus.extra, works):
            write_shards(folders, owner, source)


def write_shards(folders: Folders, owner: str, source: Source) -> None:
    """Write the shards of one source, unless a step that was interrupted later wrote them."""
    folder = folders.shards(source.name, owner)
    if not folder.exists():  # shards appear when complete
        write_token_shards(
            folder,
            (document.text for document in source.documents),
            folders.tokenizer(owner) / "tokenizer.json",
            source=source.name,
            licence=source.licence,
            revision=source.revision,
        )


def train(folders: Folders, preset: Preset, run: str) -> None:
    """Train one run as a process of its own; an interrupted run resumes at its checkpoint."""
    config = folders.run_config(run)
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(run_config(preset, run, folders))
    launch(config)


def export(folders: Folders, preset: Preset) -> None:
    """Export the models that are not there yet and load both back with transformers."""
    for model, run in FINAL_RUNS.items():
        if not folders.model(model).exists():  # an export appears only when it is complete
            steps = tomllib.loads(folders.run_config(run).read_text())["training"]["steps"]
            export_checkpoint(
                folders.run(run) / "checkpoint" / f"step-{steps}",
                folders.tokenizer(preset.tokenizer_owner(model)),
                folders.model(model),
                max_position_embeddings=CONTEXT_LENGTH,
            )
        loaded = AutoModelForCausalLM.from_pretrained(folders.model(model))
        tokenizer = AutoTokenizer.from_pretrained(folders.model(model))
        if loaded.config.vocab_size != len(tokenizer):
            raise ValueError(f"{folders.model(model)} does not load back as it was written")
