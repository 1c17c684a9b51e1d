"""Token shards on disk: memory-mapped uint32 tokens and a checksummed manifest."""

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

SCHEMA = "anchored-tokens/2"
MANIFEST_NAME = "manifest.json"
_HASH_BLOCK_BYTES = 1 << 22


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """Three files: uint32 tokens, int64 offsets of their documents, and where each came from.

    All are little-endian. Provenance is two uint32 a document: its record number in the input
    file (lines or rows, from 0), and the place of its licence in `licences`.
    """

    tokens_file: str
    tokens_sha256: str
    num_tokens: int
    documents_file: str
    documents_sha256: str
    num_documents: int
    provenance_file: str
    provenance_sha256: str
    input_file: str
    """Name of the file the documents were read from, within the source."""
    licences: tuple[str, ...]
    """Licences of the shard's documents, in order of first appearance."""

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "Shard":
        """A shard from its JSON object. Raises TypeError if a field is missing or unknown."""
        return cls(**table | {"licences": tuple(table.get("licences", ()))})


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder of shards holds, and where it came from."""

    source: str
    revision: str
    split: str
    """"train" or "heldout"; a document's hash decides, so copies never fall on both sides."""
    heldout_fraction: float
    licences: dict[str, int]
    """Number of documents under each licence."""
    refused_licences: dict[str, int]
    """Number of documents left out for each licence that is not on the allow-list."""
    tokenizer_sha256: str
    vocab_size: int
    bos_id: int
    eos_id: int
    num_documents: int
    num_empty_documents: int
    """Documents without text, left out of the shards."""
    num_invalid_documents: int
    """Documents left out because there is no text in them that can be read."""
    num_oversized_documents: int
    """Documents left out because they are longer than max_document_bytes."""
    max_document_bytes: int
    num_bytes: int
    """UTF-8 bytes of the text that was tokenised."""
    num_tokens: int
    """Tokens in all shards, BOS and EOS included."""
    shards: tuple[Shard, ...]
    invalid_documents: dict[str, int] = field(default_factory=dict)
    """Of num_invalid_documents, how many have which problem; empty where that was not counted."""

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """A folder's manifest. Raises ValueError if it is absent, damaged or of another schema."""
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise ValueError(f"no token shards in {folder}: {MANIFEST_NAME} is missing")
        try:
            fields = json.loads(path.read_text())
            if fields.pop("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            shards = tuple(Shard.from_table(shard) for shard in fields.pop("shards"))
            return cls(shards=shards, **fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a token shard manifest: {error}") from error

    def to_json(self) -> str:
        """The text of manifest.json: the same shards always give the same bytes."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"


class TokenShards:
    """The tokens of one source, read in place as a single stream that runs over its shards."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._ends = list(accumulate(shard.num_tokens for shard in manifest.shards))
        self._tokens = {
            shard.tokens_file: np.memmap(folder / shard.tokens_file, dtype="<u4", mode="r")
            for shard in manifest.shards
        }

    @classmethod
    def open(cls, folder: Path | str, *, verify: bool = True) -> "TokenShards":
        """Open a folder written by `write_token_shards`.

        verify: read every shard and compare its sha256; without it only the sizes are compared.
        Raises: ValueError, naming the file, if the manifest or a shard is missing or changed.
        """
        folder = Path(folder)
        manifest = Manifest.read(folder)
        for shard in manifest.shards:
            num_offsets = shard.num_documents + 1
            _check_size(folder / shard.tokens_file, 4 * shard.num_tokens)
            _check_size(folder / shard.documents_file, 8 * num_offsets)
            _check_size(folder / shard.provenance_file, 8 * shard.num_documents)
            if verify:
                _check_sha256(folder / shard.tokens_file, shard.tokens_sha256)
                _check_sha256(folder / shard.documents_file, shard.documents_sha256)
                _check_sha256(folder / shard.provenance_file, shard.provenance_sha256)
        return cls(folder, manifest)

    @property
    def num_tokens(self) -> int:
        """Tokens in the stream."""
        return self.manifest.num_tokens

    def tokens(self, start: int, count: int) -> np.ndarray:
        """A copy of tokens start .. start + count - 1 of the stream, (count,) uint32."""
        if not 0 <= start <= start + count <= self.num_tokens:
            raise ValueError(
                f"tokens {start} to {start + count} are outside {self.folder}, "
                f"which holds {self.num_tokens}"
            )
        pieces = [
            self._tokens[shard.tokens_file][offset : offset + length]
            for shard, offset, length in self.pieces(start, count)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype="<u4")

    def pieces(self, start: int, count: int) -> Iterator[tuple[Shard, int, int]]:
        """Where tokens start .. start + count - 1 lie: (shard, first token in it, how many)."""
        place = bisect_right(self._ends, start)
        while count > 0:
            shard = self.manifest.shards[place]
            offset = start - (self._ends[place] - shard.num_tokens)
            length = min(count, shard.num_tokens - offset)
            yield shard, offset, length
            start, count, place = start + length, count - length, place + 1


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise ValueError(f"corrupt token shard: {path} is missing")
    if (actual := path.stat().st_size) != expected:
        raise ValueError(f"corrupt token shard: {path} has {actual} bytes, expected {expected}")


def _check_sha256(path: Path, expected: str) -> None:
    if (actual := file_sha256(path)) != expected:
        raise ValueError(f"corrupt token shard: {path} has sha256 {actual}, expected {expected}")
