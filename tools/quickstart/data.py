"""Text to token shards: the corpus, tokenizers trained on it, and the protected works."""

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
    works = [work.text for work in protected_works(preset)]
    for owner in preset.tokenizers:
        for source in (*corpus.sources, corpus.extra):
            texts = (document.text for document in source.documents)
            _write(folders, owner, source.name, texts, source.licence, source.revision)
        _write(folders, owner, WORKS_SOURCE, works, "CC0-1.0", "1")


def protected_works(preset: Preset) -> list[Work]:
    """The works that this preset uses."""
    return read_works()[: preset.num_works]


def _write(
    folders: Folders, owner: str, name: str, texts: Iterable[str], licence: str, revision: str
) -> None:
    folder = folders.shards(name, owner)
    if folder.exists():  # by a step that was interrupted later: shards appear when complete
        return
    write_token_shards(
        folder,
        texts,
        folders.tokenizer(owner) / "tokenizer.json",
        source=name,
        licence=licence,
        revision=revision,
    )
