"""The files of one token shard, written as its documents come."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

import numpy as np

from .shards import Shard


class ShardFiles:
    """Tokens go to disk as they come; offsets and provenance follow when the shard is closed.

    Files are complete on disk when `close` returns. A file of the same name, left by a process
    that was killed, is written over.
    """

    def __init__(self, folder: Path, name: str, *, input_file: str) -> None:
        """name: what follows "tokens-" in the file names."""
        self._folder = folder
        self._name = name
        self._input_file = input_file
        self._file: BinaryIO = (folder / f"tokens-{name}.bin").open("wb")
        self._digest = hashlib.sha256()
        self._offsets = [0]
        self._provenance: list[tuple[int, int]] = []
        self._licences: dict[str, int] = {}

    @property
    def num_tokens(self) -> int:
        return self._offsets[-1]

    def add(self, token_ids: np.ndarray, *, record: int, licence: str) -> None:
        """Append a document: token_ids (num_tokens,) uint32, its record number and licence."""
        self._file.write(data := token_ids.tobytes())
        self._digest.update(data)
        self._offsets.append(self.num_tokens + len(token_ids))
        self._provenance.append((record, self._licences.setdefault(licence, len(self._licences))))

    def close(self) -> Shard:
        """Finish the files and describe them."""
        _sync(self._file)
        self._file.close()
        documents_file = f"documents-{self._name}.bin"
        provenance_file = f"provenance-{self._name}.bin"
        return Shard(
            tokens_file=f"tokens-{self._name}.bin",
            tokens_sha256=self._digest.hexdigest(),
            num_tokens=self.num_tokens,
            documents_file=documents_file,
            documents_sha256=self._write(documents_file, np.array(self._offsets, dtype="<i8")),
            num_documents=len(self._provenance),
            provenance_file=provenance_file,
            provenance_sha256=self._write(provenance_file, np.array(self._provenance, dtype="<u4")),
            input_file=self._input_file,
            licences=tuple(self._licences),
        )

    def abandon(self) -> None:
        """Close the file of a shard that will not be finished."""
        self._file.close()

    def _write(self, name: str, array: np.ndarray) -> str:
        data = array.tobytes()
        with (self._folder / name).open("wb") as file:
            file.write(data)
            _sync(file)
        return hashlib.sha256(data).hexdigest()


def write_durably(path: Path, text: str) -> None:
    """Replace a text file in one step: readers and a crash see the old text or the new one.

    Two processes must not write the same file at once.
    """
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        file.write(text.encode())
        _sync(file)
    partial.replace(path)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
