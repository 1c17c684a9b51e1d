"""The lines and JSON records of a file, compressed or not, of which one at a time is in memory."""

import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, BinaryIO, Final

from .input_files import InputFile

# A damaged block gives nothing, so blocks are small: 64 KiB lose some hundred documents at most.
_READ_BYTES: Final = 1 << 16
# One of gzip can hold 1,032 bytes, four of zstd for 128 KiB: these give 8 MiB at most.
_COMPRESSED_READ_BYTES: Final = 1 << 8
_GZIP_FORMAT: Final = 31  # zlib's word for a gzip header and its checksum, with any window
_ZSTD_WINDOW_BYTES: Final = 1 << 31  # the format's largest; the library refuses above 128 MB
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
_IN_STRING: Final = re.compile(rb'"|\\.', re.DOTALL)
_OUTSIDE_STRINGS: Final = re.compile(rb'["\[\]{},]')


class DamagedFile(Exception):
    """The contents of a file cannot be read; errors of reading, which may pass, are OSErrors."""


class _Part:
    """A record whose end has not been read; of one that is too long nothing is kept."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._num_bytes = 0

    def add(self, piece: bytes) -> None:
        self._num_bytes += len(piece)
        if self._num_bytes <= self._max_bytes:
            self._pieces.append(piece)
        else:
            self._pieces.clear()

    def end(self) -> bytes | None:
        """The record, None if it is too long; the next one begins."""
        record = b"".join(self._pieces) if self._num_bytes <= self._max_bytes else None
        self._pieces, self._num_bytes = [], 0
        return record


def file_lines(file: InputFile, *, max_bytes: int = sys.maxsize) -> Iterator[bytes | None]:
    """The lines of a file, decompressed; None for one that is longer than max_bytes.

    Raises: DamagedFile where it cannot be read to its end.
    """
    return _lines(_file_blocks(file), max_bytes)


def json_records(file: InputFile, *, max_bytes: int) -> Iterator[bytes | None]:
    """As `file_lines`, and the elements of a file that is one JSON array."""
    blocks = filter(None, _file_blocks(file))
    head = next(blocks, b"")
    split = _array_elements if _begins_array(head) else _lines
    yield from split(chain([head], blocks), max_bytes)


def _begins_array(head: bytes) -> bool:
    """True if a file that begins so is an array, which may be written over several lines."""
    first_line, _, others = head.removeprefix(_BYTE_ORDER_MARK).lstrip().partition(b"\n")
    if not first_line.startswith(b"[") or not others.strip():
        return first_line.startswith(b"[")
    try:
        json.loads(first_line)
    except (ValueError, RecursionError):
        return True
    return False  # a line for itself


def _lines(blocks: Iterator[bytes], max_bytes: int) -> Iterator[bytes | None]:
    part, rest = _Part(max_bytes), b""
    for block in blocks:
        *lines, rest = block.split(b"\n")
        for line in lines:
            part.add(line)
            yield part.end()
        part.add(rest)
    if (last := part.end()) != b"":
        yield last


def _array_elements(blocks: Iterator[bytes], max_bytes: int) -> Iterator[bytes | None]:
    """The elements of a JSON array as they are written, by its brackets and strings."""
    part, depth, is_string, rest = _Part(max_bytes), 0, False, b""
    for block in blocks:
        block = rest + block
        start = at = 0
        while mark := (_IN_STRING if is_string else _OUTSIDE_STRINGS).search(block, at):
            at = mark.end()
            if mark[0] == b'"':
                is_string = not is_string
            elif mark[0] in (b"[", b"{"):
                depth += 1
                start = at if depth == 1 else start
            elif mark[0] in (b"]", b"}", b","):
                if depth == 1:
                    part.add(block[start : mark.start()])
                    start = at
                    element = part.end()
                    if element is None or element.strip():
                        yield element
                depth -= mark[0] != b","
        # A backslash belongs to the byte after it, which is in the next block.
        rest = block[-1:] if is_string and at < len(block) and block.endswith(b"\\") else b""
        part.add(block[start : len(block) - len(rest)])
    if (last := part.end()) is None or last.strip():
        yield last


def _file_blocks(file: InputFile) -> Iterator[bytes]:
    # Not the JSON reader of datasets: it gives up 10 MB for one invalid byte, and a file where
    # metadata differ from row to row. fsspec is what datasets opens files with, hf:// included.
    import fsspec

    with fsspec.open(file.url, "rb") as stream:
        yield from _decompressed_blocks(stream, file.name)


def _decompressed_blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its name ends in .gz, .zst or .zstd.

    All members of a file of several are read, and zeros after them are no damage: tapes and block
    devices pad gzip files. Unlike the readers of gzip and zstandard this gives everything before a
    cut, and notices one in either format.
    Raises: DamagedFile where the contents end early or are not what the name says.
    """
    import zstandard  # who takes a tokenizer from this folder reads no files

    new_frame: Callable[[], Any] = partial(zlib.decompressobj, _GZIP_FORMAT)
    padding = b"\0"
    if name.endswith((".zst", ".zstd")):
        new_frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
        padding = b""
    elif not name.endswith(".gz"):
        yield from iter(partial(stream.read, _READ_BYTES), b"")
        return
    frame, is_empty = new_frame(), True  # between two members there is none
    try:
        while block := stream.read(_COMPRESSED_READ_BYTES):
            while block := block if frame else block.lstrip(padding):
                frame, is_empty = frame or new_frame(), False
                yield frame.decompress(block)
                block = frame.unused_data
                frame = None if frame.eof else frame
    except (zlib.error, zstandard.ZstdError) as error:
        raise DamagedFile(error) from error
    if frame and not is_empty:
        raise DamagedFile("it ends inside of its compressed data")
