"""The documents of an input file, and the rules that decide where each of them goes."""

import hashlib
import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, BinaryIO, Final

from .input_files import InputFile

NO_LICENCE = "(none given)"
DEFAULT_MAX_DOCUMENT_BYTES = 20_000_000
# Single damaged records of a crawl stay far below it; a wrong field passes it in seconds.
DEFAULT_MAX_INVALID_DOCUMENTS = 1000
DEFAULT_SHARD_TOKENS = 1 << 28  # 1 GiB of uint32
_HASH_RANGE = 1 << 64
# Conditions that no open licence has, in the forms in which they are added to the name of one; "NC"
# and "ND" as words, so that NCSA is none.
_DENIED: Final = re.compile(
    r"(?<![a-z0-9])(nc|nd)(?![a-z0-9])|non[\s_-]?commercial|no[\s_-]?deriv|commons[\s_-]?clause",
    re.IGNORECASE,
)
_PARQUET_ROWS = 256
logger = logging.getLogger(__name__)
# A damaged block gives nothing, so blocks are small: 64 KiB lose some hundred documents at most.
_READ_BYTES: Final = 1 << 16
_GZIP_FORMAT: Final = 31  # zlib's word for a gzip header and its checksum, with any window
_ZSTD_WINDOW_BYTES: Final = 1 << 31  # the format's largest; the library refuses above 128 MB


class Verdict(StrEnum):
    """The rule that decided about a document."""

    TRAIN = "train"
    HELDOUT = "heldout"
    EMPTY = "empty"
    INVALID = "invalid"
    OVERSIZED = "oversized"
    REFUSED = "refused"
    CONTAMINATED = "contaminated"

    @property
    def is_kept(self) -> bool:
        return self in (Verdict.TRAIN, Verdict.HELDOUT)


class Problem(StrEnum):
    """Why a record has no text that can be read."""

    NO_TEXT = "no text in the text field"
    NOT_JSON = "not JSON"
    NOT_UTF8 = "not UTF-8"
    DAMAGED = "the rest of a damaged file"


@dataclass(frozen=True, slots=True)
class Document:
    """A record of an input file."""

    record: int
    """Line or row in the input file, from 0."""
    text: bytes | None
    """UTF-8; None if the record could not be read as such."""
    licences: tuple[str, ...] = ()
    """As the record states them; none if it does not."""
    problem: Problem | None = None
    """Why a record has no text; None where it has."""

    @property
    def licence(self) -> str:
        """One line for histograms and ledgers."""
        return " AND ".join(self.licences) or NO_LICENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentRules:
    """Which documents are kept, and which of them are held out."""

    licences: tuple[str, ...] = ()
    """Allow-list of names, shell patterns allowed, case ignored; empty allows every document.

    A pattern allows no name with NC, ND or a Commons Clause in it; only the name itself does."""
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    heldout_fraction: float = 0.0
    left_out: frozenset[bytes] = frozenset()
    """`text_digest` of documents that hold what is not to be trained on."""

    def __post_init__(self) -> None:
        if self.max_document_bytes < 1:
            raise ValueError(
                f"max_document_bytes must be at least 1, got {self.max_document_bytes}"
            )
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction must be in [0, 1), got {self.heldout_fraction}")

    def verdict(self, document: Document) -> Verdict:
        """Where a document goes; the first rule that it breaks counts."""
        if document.text is None:
            return Verdict.INVALID
        if not document.text:
            return Verdict.EMPTY
        if len(document.text) > self.max_document_bytes:
            return Verdict.OVERSIZED
        if self.licences and not (document.licences and all(map(self._lists, document.licences))):
            return Verdict.REFUSED
        if self.left_out and text_digest(document.text) in self.left_out:
            return Verdict.CONTAMINATED
        digest = hashlib.blake2b(document.text, digest_size=8).digest()
        is_heldout = int.from_bytes(digest, "little") < self.heldout_fraction * _HASH_RANGE
        return Verdict.HELDOUT if is_heldout else Verdict.TRAIN

    def _lists(self, licence: str) -> bool:
        name, patterns = licence.lower(), [pattern.lower() for pattern in self.licences]
        if _DENIED.search(name):
            return name in patterns
        return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFields:
    """Where a record holds what is read of it; dots go into nested objects."""

    text: str = "text"
    licence: str = "metadata.license"
    """A name or a list of names."""
    fixed_licence: str = ""
    """The licence of every document, where records do not state it."""
    licence_separator: str = ""
    """Between several names in one text, all of which count; empty: a text is one name."""
    licence_if_none: str = ""
    """Name under which documents without a licence count; empty: they have none."""


def text_digest(text: bytes) -> bytes:
    """16 bytes that name a document's text wherever it stands."""
    return hashlib.blake2b(text, digest_size=16).digest()


class DamagedFile(Exception):
    """The contents of a file cannot be read; errors of reading, which may pass, are OSErrors."""


def input_documents(
    file: InputFile, fields: RecordFields, *, first_record: int = 0
) -> Iterator[Document]:
    """Documents from record `first_record` on; a record without text gives one with its problem.

    A file that is cut short or damaged ends with one such document for all that cannot be read.
    Raises: ValueError if the file cannot be opened or read, or if a parquet file has no column of
    texts of that name.
    """
    rows: Iterator[Any] = file_lines(file)
    document: Callable[[Any, int, RecordFields], Document] = _json_document
    if file.is_parquet:
        rows, document = _parquet_rows(file, fields), _parquet_document
    record = 0
    try:
        for row in rows:
            if record >= first_record:
                yield document(row, record, fields)
            record += 1
    except DamagedFile as error:
        record = max(first_record, record)
        logger.warning("%s is damaged from record %d on: %s", file.name, record, error)
        yield Document(record, None, problem=Problem.DAMAGED)
    except OSError as error:
        raise ValueError(f"input file {file.name} cannot be read: {error}") from error


def file_lines(file: InputFile) -> Iterator[bytes]:
    """The lines of a file, decompressed; raises DamagedFile where it cannot be read to its end."""
    # Not the JSON reader of datasets: it gives up 10 MB for one invalid byte, and a file where
    # metadata differ from row to row. fsspec is what datasets opens files with, hf:// included.
    import fsspec

    rest = b""
    with fsspec.open(file.url, "rb") as stream:
        for block in _decompressed_blocks(stream, file.name):
            *lines, rest = (rest + block).split(b"\n")
            yield from lines
    if rest:
        yield rest


def _json_document(line: bytes, record: int, fields: RecordFields) -> Document:
    if not line.strip():
        return Document(record, b"")
    try:
        table = json.loads(line)
        text = _field(table, fields.text)
        if not isinstance(text, str):
            return Document(record, None, problem=Problem.NO_TEXT)
        return Document(record, text.encode(), _licences(table, fields))
    except UnicodeError:  # in the bytes, or half of a surrogate pair, escaped in JSON
        return Document(record, None, problem=Problem.NOT_UTF8)
    except (ValueError, RecursionError):  # the latter for brackets without end
        return Document(record, None, problem=Problem.NOT_JSON)


def _parquet_rows(file: InputFile, fields: RecordFields) -> Iterator[Any]:
    # Not the Parquet reader of datasets: it decodes row groups ahead in threads, so that how much
    # it gives before a damaged one is a race. One group after another always ends at one record.
    import fsspec
    import pyarrow
    from pyarrow.parquet import ParquetFile

    name = fields.text
    columns = {name} if fields.fixed_licence else {name, fields.licence.partition(".")[0]}
    try:
        with fsspec.open(file.url, "rb") as stream, ParquetFile(stream, pre_buffer=False) as groups:
            names = groups.schema_arrow.names
            if name not in names:
                raise ValueError(f"input file {file.name} has no column {name!r}: {names}")
            columns &= set(names)
            for rows in groups.iter_batches(
                _PARQUET_ROWS, columns=sorted(columns), use_threads=False
            ):
                index = rows.schema.get_field_index(name)
                texts = rows.column(index)
                try:  # as bytes: one invalid string would fail the conversion of the whole batch
                    raw = texts.cast(pyarrow.large_binary())
                except pyarrow.ArrowNotImplementedError as error:
                    raise ValueError(
                        f"column {name!r} of input file {file.name} is {texts.type}, not text"
                    ) from error
                yield from rows.set_column(index, name, raw).to_pylist()
    except pyarrow.ArrowInvalid as error:
        raise DamagedFile(error) from error
    except OSError as error:
        # Arrow's word for damaged contents is an OSError of no kind and without a number;
        # what the system or the Hub could not read is there when the file is read again.
        if type(error) is not OSError or error.errno is not None:
            raise
        raise DamagedFile(error) from error


def _parquet_document(row: dict[str, Any], record: int, fields: RecordFields) -> Document:
    text = row[fields.text]
    if text is None:
        return Document(record, None, problem=Problem.NO_TEXT)
    try:
        text.decode()
    except UnicodeDecodeError:
        return Document(record, None, problem=Problem.NOT_UTF8)
    return Document(record, text, _licences(row, fields))


def _licences(table: dict[str, Any], fields: RecordFields) -> tuple[str, ...]:
    if fields.fixed_licence:
        return (fields.fixed_licence,)
    value = _field(table, fields.licence)
    given = value if isinstance(value, list) else [value] if value else []
    separator = fields.licence_separator
    names = [name for one in given for name in (str(one).split(separator) if separator else [one])]
    names = [name.strip() for name in map(str, names)]
    return tuple(filter(None, names)) or tuple(filter(None, [fields.licence_if_none]))


def _field(table: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table


def _decompressed_blocks(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """The bytes of a file, decompressed if its name ends in .gz, .zst or .zstd.

    All members of a file of several are read. Unlike the readers of gzip and zstandard this gives
    everything before a cut, and tells one in either format.
    Raises: DamagedFile where the contents end early or are not what the name says.
    """
    import zstandard  # who takes a tokenizer from this folder reads no files

    new_frame: Callable[[], Any] | None = None
    if name.endswith(".gz"):
        new_frame = partial(zlib.decompressobj, _GZIP_FORMAT)
    elif name.endswith((".zst", ".zstd")):
        new_frame = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj
    frame: Any = None
    try:
        while block := stream.read(_READ_BYTES):
            while block and new_frame:
                frame = frame or new_frame()
                yield frame.decompress(block)
                block = frame.unused_data
                if frame.eof:
                    frame = None
            if block:
                yield block
    except (zlib.error, zstandard.ZstdError) as error:
        raise DamagedFile(error) from error
    if frame:
        raise DamagedFile("it ends inside of its compressed data")
