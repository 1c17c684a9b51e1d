"""Token shards on disk: memory-mapped uint32 tokens, checked against their manifest."""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from ...durable_files import file_sha256
from .manifest import Manifest, Shard


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
