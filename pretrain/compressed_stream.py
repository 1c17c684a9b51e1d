"""A file's bytes behind its compression, to its end or to where it is damaged."""

import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

import zstandard

DAMAGE: Final = (EOFError, zlib.error, zstandard.ZstdError)
"""Errors of contents; those of reading, which may pass, are OSErrors."""

# A damaged block gives nothing, so blocks are small: 64 KiB lose some hundred documents at most.
_READ_BYTES: Final = 1 << 16
_GZIP_FORMAT: Final = 31  # zlib's word for a gzip header and its checksum, with any window
_ZSTD_WINDOW_BYTES: Final = 1 << 31  # the format's largest; the library refuses above 128 MB


def decompressed_blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its name ends in .gz, .zst or .zstd.

    All members of a file of several are read. Unlike the readers of gzip and zstandard this gives
    everything before a cut, and tells one in either format.
    Raises: one of `DAMAGE` where the contents end early or are not what the name says.
    """
    new_frame = _frame_reader(name)
    frame: Any = None
    while block := stream.read(_READ_BYTES):
        while block and new_frame:
            frame = frame or new_frame()
            yield frame.decompress(block)
            block = frame.unused_data
            if frame.eof:
                frame = None
        if block:
            yield block
    if frame:
        raise EOFError("it ends inside of its compressed data")


def _frame_reader(name: str) -> Callable[[], Any] | None:
    if name.endswith(".gz"):
        return lambda: zlib.decompressobj(_GZIP_FORMAT)
    if name.endswith((".zst", ".zstd")):
        return zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
    return None
