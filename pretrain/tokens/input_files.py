"""The input files of a source, local or of a Hub dataset at a pinned revision, and their lines."""

import json
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, Final

_PARQUET = ".parquet"
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_COMPRESSIONS = ("", ".gz", ".zst", ".zstd")
_SUPPORTED = (_PARQUET, *map("".join, product(_JSON_LINES, _COMPRESSIONS)))
_FORMATS = f"{', '.join((*_JSON_LINES, _PARQUET))} (JSON also compressed: .gz, .zst)"
# A damaged block gives nothing, so blocks are small: 64 KiB lose some hundred documents at most.
_READ_BYTES: Final = 1 << 16
# One of gzip can hold 1,032 bytes, four of zstd for 128 KiB: these give 8 MiB at most.
_COMPRESSED_READ_BYTES: Final = 1 << 8
_GZIP_FORMAT: Final = 31  # zlib's word for a gzip header and its checksum, with any window
_ZSTD_WINDOW_BYTES: Final = 1 << 31  # the format's largest; the library refuses above 128 MB
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
MAX_ARRAY_BYTES: Final = 1 << 28
"""Most bytes of a file that is one JSON array, decompressed: it is read whole."""


class DamagedFile(Exception):
    """The contents of a file cannot be read; errors of reading, which may pass, are OSErrors."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of documents."""

    name: str
    """Within the source: the same on every machine."""
    url: str
    """A path, or an address that datasets opens."""
    num_bytes: int
    """Its size; a source gives tokens in proportion to it."""

    @property
    def is_parquet(self) -> bool:
        return self.name.endswith(_PARQUET)


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """All input files of a source, in an order that does not depend on the machine."""

    revision: str
    """Commit of a Hub dataset, or what the user calls this version of local files."""
    files: tuple[InputFile, ...]

    def __post_init__(self) -> None:
        for file in self.files:
            if not file.name.endswith(_SUPPORTED):
                raise ValueError(f"input file {file.name} is of no supported format: {_FORMATS}")


def local_files(inputs: Sequence[Path], *, revision: str) -> SourceFiles:
    """Files, and the supported files in folders and below them, in the order of their names.

    Raises: ValueError for an input without a supported file, and for two files of one name.
    """
    files = sorted((file for path in inputs for file in _expand(path)), key=lambda file: file.name)
    if duplicates := [one.name for one, other in pairwise(files) if one.name == other.name]:
        raise ValueError(f"input files must have different names, got twice: {duplicates[0]}")
    return SourceFiles(revision, tuple(files))


def hub_files(dataset: str, *, revision: str) -> SourceFiles:
    """The training files of a Hub dataset; nothing is downloaded but their list and sizes.

    revision: a commit; shortened ones are resolved to the full hash.
    Raises: ValueError if there is no revision or no training file, OSError as the Hub's library.
    """
    if not revision:
        raise ValueError(f"dataset {dataset} needs a revision: name the commit to read")
    from datasets import load_dataset_builder
    from huggingface_hub import HfFileSystem

    data_files = load_dataset_builder(dataset, revision=revision).config.data_files
    urls = sorted(str(url) for url in (data_files or {}).get("train", []))
    if not urls:
        raise ValueError(f"dataset {dataset} at revision {revision} has no training files")
    # hf://datasets/OWNER/NAME@COMMIT/PATH, as datasets resolves them
    commit = urls[0].partition("@")[2].partition("/")[0]
    folder = f"{urls[0].partition('@')[0]}@{commit}"
    listed: Any = HfFileSystem().find(folder.removeprefix("hf://"), detail=True)
    sizes = {f"hf://{name}": entry["size"] for name, entry in listed.items()}
    files = (InputFile(url.removeprefix(f"{folder}/"), url, int(sizes[url])) for url in urls)
    return SourceFiles(commit, tuple(files))


def _expand(path: Path) -> list[InputFile]:
    if path.is_file():
        return [InputFile(path.name, str(path), path.stat().st_size)]
    if not path.is_dir():
        raise ValueError(f"input {path} does not exist")
    files = [file for file in path.rglob("*") if file.is_file() and file.name.endswith(_SUPPORTED)]
    if not files:
        raise ValueError(f"input folder {path} holds no file of a supported format: {_FORMATS}")
    return [
        InputFile(file.relative_to(path).as_posix(), str(file), file.stat().st_size)
        for file in files
    ]


def json_records(file: InputFile, *, max_bytes: int = sys.maxsize) -> Iterator[bytes | None]:
    """The lines of a file, decompressed, or the elements of one JSON array, which is read whole.

    Yields: None for a line of more than max_bytes, of which nothing is kept in memory.
    Raises: DamagedFile where the file cannot be read to its end, ValueError for an array that is
    not whole or has more than MAX_ARRAY_BYTES.
    """
    blocks = filter(None, _file_blocks(file))
    head = next(blocks, b"")
    if not head.removeprefix(_BYTE_ORDER_MARK).lstrip().startswith(b"["):
        yield from _lines(chain([head], blocks), max_bytes)
        return
    text = bytearray(head)
    for block in blocks:
        text += block
        if len(text) > MAX_ARRAY_BYTES:
            size = f"more than {MAX_ARRAY_BYTES:,} bytes"
            raise ValueError(f"input file {file.name} is a JSON array of {size}: write lines")
    try:
        records = json.loads(text)
    except (ValueError, RecursionError) as error:  # the latter for brackets without end
        raise ValueError(f"input file {file.name} is no whole JSON array: {error}") from None
    yield from (json.dumps(record).encode() for record in records)


def _lines(blocks: Iterator[bytes], max_bytes: int) -> Iterator[bytes | None]:
    pieces: list[bytes] = []
    num_bytes = 0
    for block in blocks:
        *lines, rest = block.split(b"\n")
        for line in lines:
            is_kept = num_bytes + len(line) <= max_bytes
            yield b"".join([*pieces, line]) if is_kept else None
            pieces, num_bytes = [], 0
        num_bytes += len(rest)
        pieces.append(rest)
        if num_bytes > max_bytes:
            pieces.clear()
    if num_bytes:
        yield b"".join(pieces) if pieces else None


def _file_blocks(file: InputFile) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its name ends in .gz, .zst or .zstd.

    All members of a file of several are read, and zeros after them are no damage, as tapes pad gzip
    files. Unlike the readers of gzip and zstandard this gives everything before a cut, and notices
    one in either format: DamagedFile.
    """
    # Not the JSON reader of datasets: it gives up 10 MB for one invalid byte, and a file where
    # metadata differ from row to row. fsspec is what datasets opens files with, hf:// included.
    import fsspec
    import zstandard  # who takes a tokenizer from this folder reads no files

    new_frame: Callable[[], Any] = partial(zlib.decompressobj, _GZIP_FORMAT)
    padding = b"\0"
    if file.name.endswith((".zst", ".zstd")):
        new_frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
        padding = b""
    with fsspec.open(file.url, "rb") as stream:
        if not file.name.endswith((".gz", ".zst", ".zstd")):
            yield from iter(partial(stream.read, _READ_BYTES), b"")
            return
        frame = None  # as between two members
        try:
            while block := stream.read(_COMPRESSED_READ_BYTES):
                while block := block if frame else block.lstrip(padding):
                    frame = frame or new_frame()
                    yield frame.decompress(block)
                    block = frame.unused_data
                    frame = None if frame.eof else frame
        except (zlib.error, zstandard.ZstdError) as error:
            raise DamagedFile(error) from error
    if frame:
        raise DamagedFile("it ends inside of its compressed data")
