"""Tokenise documents into a folder of token shards, which appears only when it is complete."""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from .shards import MANIFEST_NAME, Manifest, Shard, TokenShards, file_sha256

BOS_TOKEN = "<|begin_of_text|>"
EOS_TOKEN = "<|end_of_text|>"
# encode_batch_fast spreads a batch over the cores; beyond some hundred documents nothing is gained.
_BATCH_DOCUMENTS = 256
_DEFAULT_SHARD_TOKENS = 1 << 28  # 1 GiB of uint32


def write_token_shards(
    folder: Path | str,
    documents: Iterable[str],
    tokenizer_file: Path | str,
    *,
    source: str,
    licence: str,
    revision: str,
    max_tokens_per_shard: int = _DEFAULT_SHARD_TOKENS,
) -> TokenShards:
    """Write documents as BOS, tokens, EOS, one after another, and return the opened shards.

    folder: must not exist; it is filled under another name and renamed when complete.
    documents: texts; those without any character are counted and left out. Text that looks like
        a special token is encoded as ordinary text, so a document cannot end itself.
    tokenizer_file: tokenizer.json with the special tokens <|begin_of_text|> and <|end_of_text|>.
    source, licence, revision: recorded in the manifest.
    max_tokens_per_shard: a document that would pass it starts the next shard; a longer document
        gets a shard of its own.
    Raises: ValueError if the folder exists, the tokenizer lacks BOS or EOS, or there is no text.
    """
    folder, tokenizer_file = Path(folder), Path(tokenizer_file)
    if folder.exists():
        raise ValueError(f"token shards are written to a new folder, and {folder} exists")
    encoder = DocumentEncoder(tokenizer_file)
    partial = folder.with_name(folder.name + ".partial")
    _make_empty(partial)
    with _ShardWriter(partial, max_tokens_per_shard) as writer:
        for token_ids in encoder.encode(documents):
            writer.add(token_ids)
        shards = writer.finish()
    if not shards:
        raise ValueError(f"source {source} has no text to write to {folder}")
    manifest = Manifest(
        source=source,
        revision=revision,
        licences={licence: encoder.num_documents},
        tokenizer_sha256=file_sha256(tokenizer_file),
        num_tokens=sum(shard.num_tokens for shard in shards),
        shards=shards,
        **encoder.counts(),
    )
    _write_durably(partial / MANIFEST_NAME, manifest.to_json().encode())
    os.replace(partial, folder)
    return TokenShards.open(folder, verify=False)


class DocumentEncoder:
    """Turns texts into token ids between BOS and EOS, and counts what passes through."""

    def __init__(self, tokenizer_file: Path) -> None:
        if not tokenizer_file.is_file():
            raise ValueError(f"tokenizer file {tokenizer_file} does not exist")
        self._tokenizer = Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.encode_special_tokens = True
        self.vocab_size = self._tokenizer.get_vocab_size()
        self.bos_id = self._special_id(BOS_TOKEN, tokenizer_file)
        self.eos_id = self._special_id(EOS_TOKEN, tokenizer_file)
        self.num_documents = 0
        self.num_empty_documents = 0
        self.num_bytes = 0

    def encode(self, documents: Iterable[str]) -> Iterator[np.ndarray]:
        """Token ids of every document that has text, each (num_tokens,) uint32."""
        remaining = iter(documents)
        while batch := list(islice(remaining, _BATCH_DOCUMENTS)):
            texts = [text for text in batch if text]
            self.num_documents += len(texts)
            self.num_empty_documents += len(batch) - len(texts)
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            for text, encoding in zip(texts, encodings, strict=True):
                self.num_bytes += len(text.encode())
                yield np.array([self.bos_id, *encoding.ids, self.eos_id], dtype="<u4")

    def counts(self) -> dict[str, int]:
        """What a manifest says of the tokenizer and of the documents so far."""
        return {
            "vocab_size": self.vocab_size,
            "bos_id": self.bos_id,
            "eos_id": self.eos_id,
            "num_documents": self.num_documents,
            "num_empty_documents": self.num_empty_documents,
            "num_bytes": self.num_bytes,
        }

    def _special_id(self, token: str, tokenizer_file: Path) -> int:
        token_id = self._tokenizer.token_to_id(token)
        if token_id is None:
            raise ValueError(f"tokenizer {tokenizer_file} has no token {token}")
        return token_id


class _ShardWriter:
    """Appends documents to numbered pairs of files, hashing the tokens as they pass."""

    def __init__(self, folder: Path, max_tokens: int) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens_per_shard must be at least 1, got {max_tokens}")
        self._folder = folder
        self._max_tokens = max_tokens
        self._shards: list[Shard] = []
        self._offsets: list[int] = []

    def add(self, token_ids: np.ndarray) -> None:
        if self._offsets and self._offsets[-1] + len(token_ids) > self._max_tokens:
            self._finish_shard()
        if not self._offsets:
            self._start_shard()
        self._file.write(data := token_ids.tobytes())
        self._digest.update(data)
        self._offsets.append(self._offsets[-1] + len(token_ids))

    def finish(self) -> tuple[Shard, ...]:
        if self._offsets:
            self._finish_shard()
        return tuple(self._shards)

    def __enter__(self) -> "_ShardWriter":
        return self

    def __exit__(self, *exception: object) -> None:
        if self._offsets:  # an exception left a shard open
            self._file.close()

    def _start_shard(self) -> None:
        self._name = f"tokens-{len(self._shards):05d}.bin"
        self._file = (self._folder / self._name).open("wb")
        self._digest = hashlib.sha256()
        self._offsets = [0]

    def _finish_shard(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        offsets = np.array(self._offsets, dtype="<i8").tobytes()
        documents_name = self._name.replace("tokens", "documents")
        _write_durably(self._folder / documents_name, offsets)
        self._shards.append(
            Shard(
                tokens_file=self._name,
                tokens_sha256=self._digest.hexdigest(),
                num_tokens=self._offsets[-1],
                documents_file=documents_name,
                documents_sha256=hashlib.sha256(offsets).hexdigest(),
                num_documents=len(self._offsets) - 1,
            )
        )
        self._offsets = []


def _make_empty(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)  # left by a run that was killed
    folder.mkdir(parents=True)


def _write_durably(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
