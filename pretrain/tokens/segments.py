"""Tokenised input cut into segments: the unit in which the work is saved and resumed."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ...configs.config_file import from_table
from ...durable_files import sync, write_durably
from .documents import Verdict
from .encoder import EncodedDocument
from .manifest import DocumentTally, Shard

HELDOUT_FOLDER = "heldout"


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
        sync(self._file)
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
            sync(file)
        return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive records of one input file: at most one shard of each split, and their tally.

    Where a segment ends depends on the input alone, so that a run that was killed cuts the same
    segments when it goes on.
    """

    next_record: int
    """The first record after the segment."""
    is_last: bool
    shards: dict[str, Shard]
    """By split; a split without documents has none."""
    tally: DocumentTally

    @classmethod
    def read(cls, path: Path) -> "Segment":
        """The segment that `write` recorded."""
        table = json.loads(path.read_text())
        shards = {split: from_table(Shard, shard) for split, shard in table.pop("shards").items()}
        return cls(shards=shards, tally=DocumentTally.from_table(table.pop("tally")), **table)

    def write(self, path: Path) -> None:
        """Record the segment; its shards must be complete on disk."""
        write_durably(path, json.dumps(self, default=vars, indent=2) + "\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentLayout:
    """Where the shards of one input file go, and when a segment ends."""

    folder: Path
    input_file: str
    prefix: str
    """Begins the number of every shard; empty for a folder with one input."""
    max_tokens: int
    """A document that would pass it ends the segment; a longer document has its own."""
    first_index: int = 0


def write_segments(
    documents: Iterable[EncodedDocument], layout: SegmentLayout
) -> Iterator[Segment]:
    """Write shards and yield each segment when its files are complete on disk; at least one.

    Raises: ValueError if layout.max_tokens is less than 1.
    """
    if layout.max_tokens < 1:
        raise ValueError(f"max_tokens_per_shard must be at least 1, got {layout.max_tokens}")
    index = layout.first_index
    current = _OpenSegment(layout, index)
    try:
        for encoded in documents:
            if current.is_full_for(encoded):
                yield current.close(next_record=encoded.document.record, is_last=False)
                index += 1
                current = _OpenSegment(layout, index)
            current.add(encoded)
        yield current.close(next_record=current.next_record, is_last=True)
    finally:
        current.abandon()


class _OpenSegment:
    """A segment whose documents are still coming."""

    def __init__(self, layout: SegmentLayout, index: int) -> None:
        self._layout = layout
        self._name = f"{layout.prefix}{index:05d}"
        self._shards: dict[Verdict, ShardFiles] = {}
        self._tally = DocumentTally()
        self.next_record = 0

    def is_full_for(self, encoded: EncodedDocument) -> bool:
        shard = self._shards.get(encoded.verdict)
        if shard is None or encoded.token_ids is None:
            return False
        return shard.num_tokens + len(encoded.token_ids) > self._layout.max_tokens

    def add(self, encoded: EncodedDocument) -> None:
        document = encoded.document
        self.next_record = document.record + 1
        self._tally.add(document, encoded.verdict)
        if encoded.token_ids is None:
            return
        if encoded.verdict not in self._shards:
            self._shards[encoded.verdict] = self._new_shard(encoded.verdict)
        self._shards[encoded.verdict].add(
            encoded.token_ids, record=document.record, licence=document.licence
        )

    def _new_shard(self, split: Verdict) -> ShardFiles:
        folder = self._layout.folder / ("" if split is Verdict.TRAIN else HELDOUT_FOLDER)
        folder.mkdir(exist_ok=True)
        return ShardFiles(folder, self._name, input_file=self._layout.input_file)

    def close(self, *, next_record: int, is_last: bool) -> Segment:
        splits = [split for split in Verdict if split in self._shards]  # in an order of their own
        shards = {split.value: self._shards[split].close() for split in splits}
        return Segment(next_record=next_record, is_last=is_last, shards=shards, tally=self._tally)

    def abandon(self) -> None:
        for shard in self._shards.values():
            shard.abandon()
