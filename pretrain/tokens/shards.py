"""Token shards on disk: memory-mapped uint32 tokens, checked against their manifest."""

import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from ...durable_files import file_sha256, files_sha256, write_durably
from .manifest import MANIFEST_NAME, Manifest, Shard

MAX_OPEN_SHARDS = 256
"""Of a process, for all its sources: a map holds a descriptor, of which 1,024 are usual."""
STAMP_NAME = "verified.json"
_STAMP_SCHEMA = "anchored-verified/1"
# What is hashed while GPUs wait takes less than a minute; more is left to `anchored verify-shards`.
_MOST_HASHED_BYTES = 16 << 30
_NUM_SPOT_CHECKS = 4


class TokenShards:
    """The tokens of one source, read in place as a single stream that runs over its shards."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self._ends = list(accumulate(shard.num_tokens for shard in manifest.shards))
        self._versions = {
            shard.tokens_file: _version(folder / shard.tokens_file) for shard in manifest.shards
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
            _check_sha256(folder, _hashes(manifest))
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
            self._map(shard.tokens_file)[offset : offset + length]
            for shard, offset, length in self.pieces(start, count)
        ]
        return np.concatenate(pieces) if pieces else np.empty(0, dtype="<u4")

    def document_offsets(self, shard: Shard) -> np.ndarray:
        """(num_documents + 1,) int64: each document's first token in the shard, and its end."""
        return np.memmap(self.folder / shard.documents_file, dtype="<i8", mode="r")

    def provenance(self, shard: Shard) -> np.ndarray:
        """(num_documents, 2) uint32: record in the input file, place in `shard.licences`."""
        path = self.folder / shard.provenance_file
        return np.memmap(path, dtype="<u4", mode="r").reshape(-1, 2)

    def _map(self, name: str) -> np.memmap:
        return _mapped(self.folder / name, self._versions[name])

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


@lru_cache(maxsize=MAX_OPEN_SHARDS)
def _mapped(path: Path, version: tuple[int, int, int]) -> np.memmap:
    return np.memmap(path, dtype="<u4", mode="r")


def _version(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ino


def verify_shards(folder: Path) -> int:
    """Read all shards of a folder, several at a time, and leave a stamp; returns their bytes.

    The stamp holds the size and time of every file, so that an unchanged folder is not read again.
    Raises: ValueError naming the first file that is missing or not what was written.
    """
    manifest = Manifest.read(folder)
    TokenShards.open(folder, verify=True)
    hashes = _hashes(manifest)
    versions = {name: _size_and_time(folder / name) for name in hashes}
    stamp = {"schema": _STAMP_SCHEMA, "files": versions}
    stamp["manifest_sha256"] = file_sha256(folder / MANIFEST_NAME)
    with suppress(OSError):  # shards may lie where nobody can write
        write_durably(folder / STAMP_NAME, json.dumps(stamp) + "\n")
    return sum(size for size, _ in versions.values())


def is_verified(folder: Path) -> bool:
    """Whether the folder's stamp is of its files as they are now; none of them is read."""
    try:
        stamp = json.loads((folder / STAMP_NAME).read_bytes())
        versions = {name: _size_and_time(folder / name) for name in stamp["files"]}
        return bool(
            stamp["schema"] == _STAMP_SCHEMA
            and stamp["manifest_sha256"] == file_sha256(folder / MANIFEST_NAME)
            and versions == stamp["files"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def check_shards(folders: Sequence[Path]) -> None:
    """At the start of a run: all folders are verified, and a few files are read once more.

    What has no stamp is verified here if that is soon done.
    Raises: ValueError with one line about shards that are damaged or were never verified.
    """
    pending = [folder for folder in folders if not is_verified(folder)]
    num_bytes = sum(
        path.stat().st_size for folder in pending for path in folder.iterdir() if path.is_file()
    )
    if num_bytes > _MOST_HASHED_BYTES:
        raise ValueError(
            f"{num_bytes / 1e9:,.0f} GB of token shards are not verified, {pending[0]} first: run "
            "`anchored verify-shards` on the config before GPUs wait for it "
            "(data.verify_checksums = false overrules this)"
        )
    for folder in pending:
        verify_shards(folder)
    rest = [folder for folder in folders if folder not in pending]
    chosen = random.sample(rest, min(_NUM_SPOT_CHECKS, len(rest)))
    for folder in chosen:
        shard = random.choice(Manifest.read(folder).shards)
        _check_sha256(folder, {shard.tokens_file: shard.tokens_sha256})


def _hashes(manifest: Manifest) -> dict[str, str]:
    """The hash of each file that a manifest lists."""
    hashes = {}
    for shard in manifest.shards:
        hashes[shard.tokens_file] = shard.tokens_sha256
        hashes[shard.documents_file] = shard.documents_sha256
        hashes[shard.provenance_file] = shard.provenance_sha256
    return hashes


def _size_and_time(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _check_sha256(folder: Path, hashes: dict[str, str]) -> None:
    actual = files_sha256(folder / name for name in hashes)
    for (name, expected), found in zip(hashes.items(), actual, strict=True):
        if found != expected:
            raise ValueError(
                f"corrupt token shard: {folder / name} has sha256 {found}, expected {expected}"
            )
