"""Token shards on disk: their manifest, and memory-mapped uint32 tokens checked against it."""

import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ...configs.config_file import from_table
from ...durable_files import file_sha256, files_sha256, write_durably

SCHEMA = "anchored-tokens/2"
MANIFEST_NAME = "manifest.json"
MAX_OPEN_SHARDS = 256
"""Limit of a process, for all its sources: a map holds a descriptor, of which 1,024 are usual."""
STAMP_NAME = "verified.json"
_STAMP_SCHEMA = "anchored-verified/1"
# What is hashed while GPUs wait takes less than a minute; more is left to `anchored plan --verify`.
MOST_HASHED_BYTES = 16 << 30
NUM_SPOT_CHECKS = 4


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Three files: uint32 tokens, int64 offsets of their documents, and where each came from.

    All are little-endian. Provenance is two uint32 a document: its record number in the input
    file (lines or rows, from 0), and the index of its license in `licenses`.
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
    licenses: tuple[str, ...]
    """Licenses of the shard's documents, in order of first appearance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The contents of a folder of shards, and where they came from."""

    source: str
    revision: str
    split: str
    """"train" or "heldout"; a document's hash decides, so copies never fall on both sides."""
    heldout_fraction: float
    licenses: dict[str, int]
    """Number of documents under each license."""
    refused_licenses: dict[str, int]
    """Number of documents left out for each license that is not on the allow-list."""
    tokenizer_sha256: str
    vocab_size: int
    bos_id: int | None
    """The token that begins every document; None where they begin with their text."""
    eos_id: int
    """The token that ends every document, and is nowhere else."""
    num_documents: int
    # Documents left out of the shards: without text, without text that can be read, too long.
    num_empty_documents: int
    num_invalid_documents: int
    num_oversized_documents: int
    max_document_bytes: int
    num_bytes: int
    """UTF-8 bytes of the text that was tokenized."""
    num_tokens: int
    """Tokens in all shards, those that begin and end documents included."""
    shards: tuple[Shard, ...]
    invalid_documents: dict[str, int] = field(default_factory=dict)
    """num_invalid_documents by problem."""
    num_contaminated_documents: int = 0
    """Documents left out because they share passages with texts that are not to be trained on."""
    decontamination: dict[str, Any] = field(default_factory=dict)
    """Summary of the report that left them out; empty where nothing was searched."""

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """A folder's manifest. Raises ValueError if it is absent, damaged or of another schema."""
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise ValueError(f"no token shards in {folder}: {MANIFEST_NAME} is missing")
        try:
            table = json.loads(path.read_text())
            if table.pop("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            manifest: Manifest = from_table(cls, table)
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a token shard manifest: {error}") from error

    @property
    def tokens_sha256(self) -> list[str]:
        """Hashes of what the shards hold: equal tokens have equal ones in any folder."""
        return [shard.tokens_sha256 for shard in self.shards]

    def to_json(self) -> str:
        """The text of manifest.json: the same shards always give the same bytes."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"


_ENCODING = {"tokenizer_sha256": "tokenizer", "bos_id": "begin token", "eos_id": "end token"}


def encoding_difference(one: Any, other: Any) -> str:
    """The first difference in how the documents of two became tokens; "" for none.

    one, other: shards' manifests, plans of them or records of runs.
    """
    for name, word in _ENCODING.items():
        if (values := [getattr(one, name), getattr(other, name)])[0] != values[1]:
            return f"{word} {' and '.join(str(value)[:12] for value in values)}"
    return ""


class TokenShards:
    """The tokens of one source, mapped as a single stream that runs over its shards."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self._ends = list(accumulate(shard.num_tokens for shard in manifest.shards))

    @classmethod
    def open(cls, folder: Path | str) -> "TokenShards":
        """Open a folder of shards; their contents are `verify_shards`' to compare.

        Raises: ValueError, with its name, for a file that is missing or of another size.
        """
        folder = Path(folder)
        manifest = Manifest.read(folder)
        for shard in manifest.shards:
            _check_size(folder / shard.tokens_file, 4 * shard.num_tokens)
            _check_size(folder / shard.documents_file, 8 * (shard.num_documents + 1))
            _check_size(folder / shard.provenance_file, 8 * shard.num_documents)
        return cls(folder, manifest)

    @property
    def num_tokens(self) -> int:
        """Tokens in the stream."""
        return self.manifest.num_tokens

    def tokens(self, start: int, count: int) -> np.ndarray:
        """A copy of tokens start .. start + count - 1 of the stream, (count,) uint32."""
        pieces = [
            _mapped(self.folder / shard.tokens_file)[offset : offset + length]
            for shard, offset, length in self.pieces(start, count)
        ]
        return np.concatenate([np.empty(0, dtype="<u4"), *pieces])

    def document_offsets(self, shard: Shard) -> np.ndarray:
        """(num_documents + 1,) int64: each document's first token in the shard, and its end.

        Raises: ValueError, as `provenance` does, if the file is not what was written.
        """
        return _checked(self.folder / shard.documents_file, shard.documents_sha256).view("<i8")

    def provenance(self, shard: Shard) -> np.ndarray:
        """(num_documents, 2) uint32: record in the input file, index in `shard.licenses`."""
        path = self.folder / shard.provenance_file
        return _checked(path, shard.provenance_sha256).view("<u4").reshape(-1, 2)

    def pieces(self, start: int, count: int) -> Iterator[tuple[Shard, int, int]]:
        """Pieces of tokens start .. start + count - 1: (shard, first token in it, count)."""
        index = bisect_right(self._ends, start)
        while count > 0:
            shard = self.manifest.shards[index]
            offset = start - (self._ends[index] - shard.num_tokens)
            length = min(count, shard.num_tokens - offset)
            yield shard, offset, length
            start, count, index = start + length, count - length, index + 1


def _check_size(path: Path, expected: int) -> None:
    if not path.is_file():
        raise ValueError(f"corrupt token shard: {path} is missing")
    if (actual := path.stat().st_size) != expected:
        raise ValueError(f"corrupt token shard: {path} has {actual} bytes, expected {expected}")


@lru_cache(maxsize=MAX_OPEN_SHARDS)
def _mapped(path: Path) -> np.memmap:
    return np.memmap(path, dtype="<u4", mode="r")


@lru_cache(maxsize=MAX_OPEN_SHARDS)
def _checked(path: Path, sha256: str) -> np.memmap:
    """The bytes of a file, hashed when they are first read: these files are small."""
    _check_sha256(path.parent, {path.name: sha256})
    return np.memmap(path, mode="r")


def verify_shards(folder: Path) -> int:
    """Read all shards of a folder, several at a time, and leave a stamp; returns their bytes.

    The stamp holds the size and time of every file, so that an unchanged folder is not read again.
    Raises: ValueError naming the first file that is missing or not what was written.
    """
    TokenShards.open(folder)  # what is missing or cut short shows at once
    stamp = _stamp(folder)  # of the files before they are read: what changes meanwhile has none
    hashes = _hashes(folder)
    _check_sha256(folder, hashes)
    with suppress(OSError):  # shards may lie where this process cannot write
        write_durably(folder / STAMP_NAME, stamp)
    return sum((folder / name).stat().st_size for name in hashes)


def is_verified(folder: Path) -> bool:
    """True if the folder's stamp is of its files as they are now; none of them is read."""
    try:
        return (folder / STAMP_NAME).read_text() == _stamp(folder)
    except FileNotFoundError:
        return False


def _stamp(folder: Path) -> str:
    status = {name: (folder / name).stat() for name in _hashes(folder)}
    stamp = {
        "schema": _STAMP_SCHEMA,
        "files": {name: [one.st_size, one.st_mtime_ns] for name, one in status.items()},
        "manifest_sha256": file_sha256(folder / MANIFEST_NAME),
    }
    return json.dumps(stamp) + "\n"


def check_shards(folders: Sequence[Path]) -> None:
    """Verify all folders at the start of a run, and read a few files once more.

    A folder without a stamp is verified here if that is soon done.
    Raises: ValueError with one line about shards that are damaged or were never verified.
    """
    pending = [folder for folder in folders if not is_verified(folder)]
    num_bytes = sum(path.stat().st_size for one in pending for path in one.iterdir())
    if num_bytes > MOST_HASHED_BYTES:
        raise ValueError(
            f"{num_bytes / 1e9:,.0f} GB of token shards are not verified, {pending[0]} first: run "
            "`anchored plan --config FILE --verify` before GPUs wait for it "
            "(data.verify_checksums = false overrules this)"
        )
    for folder in pending:
        verify_shards(folder)
    rest = [folder for folder in folders if folder not in pending]
    for folder in random.sample(rest, min(NUM_SPOT_CHECKS, len(rest))):
        shard = random.choice(Manifest.read(folder).shards)
        _check_sha256(folder, {shard.tokens_file: shard.tokens_sha256})


def _hashes(folder: Path) -> dict[str, str]:
    kinds = ("tokens", "documents", "provenance")
    shards = [vars(shard) for shard in Manifest.read(folder).shards]
    return {one[f"{kind}_file"]: one[f"{kind}_sha256"] for one in shards for kind in kinds}


def _check_sha256(folder: Path, hashes: dict[str, str]) -> None:
    actual = files_sha256(folder / name for name in hashes)
    for (name, expected), sha256 in zip(hashes.items(), actual, strict=True):
        if sha256 != expected:
            raise ValueError(
                f"corrupt token shard: {folder / name} has sha256 {sha256}, expected {expected}"
            )
