"""Tokenise texts into a folder of token shards, which appears only when it is complete."""

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from .document import DEFAULT_SHARD_TOKENS, Document, DocumentRules
from .document_encoder import BOS_TOKEN, EOS_TOKEN, DocumentEncoder
from .shard_manifests import Origin, write_manifests
from .shard_segments import SegmentLayout, write_segments
from .shards import TokenShards

__all__ = ["BOS_TOKEN", "DEFAULT_SHARD_TOKENS", "EOS_TOKEN", "write_token_shards"]


def write_token_shards(
    folder: Path | str,
    documents: Iterable[str],
    tokenizer_file: Path | str,
    *,
    source: str,
    licence: str,
    revision: str,
    max_tokens_per_shard: int = DEFAULT_SHARD_TOKENS,
) -> TokenShards:
    """Write documents as BOS, tokens, EOS, one after another, and return the opened shards.

    folder: must not exist; it is filled under another name and renamed when complete.
    documents: texts of one licence; those without any character are counted and left out.
    tokenizer_file: tokenizer.json with the special tokens <|begin_of_text|> and <|end_of_text|>.
    source, licence, revision: recorded in the manifest.
    max_tokens_per_shard: a document that would pass it starts the next shard; a longer document
        gets a shard of its own.
    Raises: ValueError if the folder exists, the tokenizer lacks BOS or EOS, or there is no text.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"token shards are written to a new folder, and {folder} exists")
    encoder = DocumentEncoder(Path(tokenizer_file))
    partial = folder.with_name(folder.name + ".partial")
    _make_empty(partial)
    rules = DocumentRules()
    layout = SegmentLayout(
        folder=partial, input_file="", prefix="", max_tokens=max_tokens_per_shard
    )
    segments = list(write_segments(encoder.encode(_records(documents, licence), rules), layout))
    origin = Origin(source=source, revision=revision)
    write_manifests(partial, segments, origin=origin, encoder=encoder, rules=rules)
    os.replace(partial, folder)
    return TokenShards.open(folder, verify=False)


def _records(texts: Iterable[str], licence: str) -> Iterator[Document]:
    for record, text in enumerate(texts):
        yield Document(record, text.encode(), (licence,))


def _make_empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)  # left by a run that was killed
    folder.mkdir(parents=True)
