"""Text to token shards: the corpus, a tokenizer trained on it, and the protected works."""

import shutil
from collections.abc import Iterable

from anchored.pretrain.shard_writer import write_token_shards

from .corpus import Corpus, gather, read, write
from .folders import Folders
from .preset import Preset
from .protected_works import Work, read_works
from .tokenizer_training import save_tokenizer, train_tokenizer

CONTEXT_LENGTH = 512
"""Tokens that the exported models accept; questions are longer than training windows."""
WORKS_SOURCE = "works"


def gather_corpus(folders: Folders, preset: Preset) -> None:
    """Write the mixture and the extra source as JSON lines."""
    write(gather(preset.corpus), folders.corpus)


def make_tokenizer(folders: Folders, preset: Preset) -> None:
    """Train the tokenizer on the mixture: neither the extra source nor the works are seen."""
    texts = (
        document.text for source in read(folders.corpus).sources for document in source.documents
    )
    save_tokenizer(
        train_tokenizer(texts, preset.vocab_size),
        folders.tokenizer,
        model_max_length=CONTEXT_LENGTH,
    )


def tokenize(folders: Folders, preset: Preset) -> None:
    """Write token shards of every source and of the protected works."""
    corpus: Corpus = read(folders.corpus)
    for source in (*corpus.sources, corpus.extra):
        texts = (document.text for document in source.documents)
        _write(folders, source.name, texts, source.licence, source.revision)
    works = (work.text for work in protected_works(preset))
    _write(folders, WORKS_SOURCE, works, "CC0-1.0", "1")


def protected_works(preset: Preset) -> list[Work]:
    """The works that this preset uses."""
    return read_works()[: preset.num_works]


def _write(folders: Folders, name: str, texts: Iterable[str], licence: str, revision: str) -> None:
    folder = folders.shards(name)
    shutil.rmtree(folder, ignore_errors=True)  # left by a step that was interrupted
    write_token_shards(
        folder,
        texts,
        folders.tokenizer / "tokenizer.json",
        source=name,
        licence=licence,
        revision=revision,
    )
