"""The documents of an input file, and the rules that decide where each of them goes."""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Final

from .input_files import DamagedFile, InputFile, json_records

NO_LICENSE = "(none given)"
DEFAULT_MAX_DOCUMENT_BYTES = 20_000_000
# Single damaged records of a crawl stay far below it; a wrong field passes it in seconds.
DEFAULT_MAX_INVALID_DOCUMENTS = 1000
DEFAULT_SHARD_TOKENS = 1 << 28  # 1 GiB of uint32
_HASH_RANGE = 1 << 64
# Conditions that no open license has, in the forms in which they are added to the name of one; "NC"
# and "ND" as words, so that NCSA is none.
_DENIED: Final = re.compile(
    r"(?<![a-z0-9])(nc|nd)(?![a-z0-9])|non[\s_-]?commercial|no[\s_-]?deriv|commons[\s_-]?clause",
    re.IGNORECASE,
)
_PARQUET_ROWS = 32  # few, as each may be a book
logger = logging.getLogger(__name__)
# A JSON string has up to six bytes, \u0000, for one of its text; other fields are far shorter.
_JSON_BYTES_PER_BYTE: Final = 6
_OTHER_FIELDS_BYTES: Final = 1 << 20


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
    """The reason for which a record has no text that can be read."""

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
    licenses: tuple[str, ...] = ()
    """The licences that the record states; none if it states none."""
    problem: Problem | None = None
    """Why a record has no text; None where it has."""
    is_too_long: bool = False
    """It is longer than any document that is kept, and was not read."""

    @property
    def license(self) -> str:
        """One line for histograms and ledgers."""
        return " AND ".join(self.licenses) or NO_LICENSE


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentRules:
    """The rules for which documents are kept, and which of them are held out."""

    licenses: tuple[str, ...] = ()
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
        """The verdict on a document; the first rule that it breaks counts."""
        if document.is_too_long:
            return Verdict.OVERSIZED
        if not document.text:
            return Verdict.INVALID if document.text is None else Verdict.EMPTY
        if len(document.text) > self.max_document_bytes:
            return Verdict.OVERSIZED
        if self.licenses and not (document.licenses and all(map(self._lists, document.licenses))):
            return Verdict.REFUSED
        if self.left_out and text_digest(document.text) in self.left_out:
            return Verdict.CONTAMINATED
        digest = hashlib.blake2b(document.text, digest_size=8).digest()
        is_heldout = int.from_bytes(digest, "little") < self.heldout_fraction * _HASH_RANGE
        return Verdict.HELDOUT if is_heldout else Verdict.TRAIN

    def _lists(self, license: str) -> bool:
        name, patterns = license.lower(), [pattern.lower() for pattern in self.licenses]
        if _DENIED.search(name):
            return name in patterns
        return any(fnmatchcase(name, pattern) for pattern in patterns)


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFields:
    """The fields of a record that are read; dots go into nested objects."""

    text: str = "text"
    license: str = "metadata.license"
    """A name or a list of names."""
    fixed_license: str = ""
    """The license of every document, where records do not state it."""
    license_separator: str = ""
    """Between several names in one text, all of which count; empty: a text is one name."""
    license_if_none: str = ""
    """Name under which documents without a license count; empty: they have none."""


def text_digest(text: bytes) -> bytes:
    """16 bytes that name a document's text wherever it is."""
    return hashlib.blake2b(text, digest_size=16).digest()


def input_documents(
    file: InputFile,
    fields: RecordFields,
    *,
    first_record: int = 0,
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES,
) -> Iterator[Document]:
    """Documents from record `first_record` on; a record without text gives one with its problem.

    A file that is cut short or damaged ends with one such document for all that cannot be read.
    max_document_bytes: of the longest document that the caller keeps. A line that is far longer is
        not held in memory: a document without text says so.
    Raises: ValueError if the file cannot be opened or read, or if a parquet file has no column of
    texts of that name.
    """
    if file.is_parquet:
        rows: Iterator[Any] = _parquet_rows(file, fields)
        document: Callable[[Any, int, RecordFields], Document] = _parquet_document
    else:
        longest = _JSON_BYTES_PER_BYTE * max_document_bytes + _OTHER_FIELDS_BYTES
        rows, document = json_records(file, max_bytes=longest), _json_document
    record = 0
    try:
        for row in rows:
            if record >= first_record:
                too_long = Document(record, None, is_too_long=True)
                yield too_long if row is None else document(row, record, fields)
            record += 1
    except DamagedFile as error:
        record = max(first_record, record)
        logger.warning("%s is damaged from record %d on: %s", file.name, record, error)
        yield Document(record, None, problem=Problem.DAMAGED)
    except OSError as error:
        raise ValueError(f"input file {file.name} cannot be read: {error}") from error


def _json_document(line: bytes, record: int, fields: RecordFields) -> Document:
    if not line.strip():
        return Document(record, b"")
    try:
        table = json.loads(line)
        text = _field(table, fields.text)
        if not isinstance(text, str):
            return Document(record, None, problem=Problem.NO_TEXT)
        return Document(record, text.encode(), _licenses(table, fields))
    except UnicodeError:  # in the bytes, or half of a surrogate pair, escaped in JSON
        return Document(record, None, problem=Problem.NOT_UTF8)
    except (ValueError, RecursionError):  # the latter for brackets without end
        return Document(record, None, problem=Problem.NOT_JSON)


def _parquet_rows(file: InputFile, fields: RecordFields) -> Iterator[Any]:
    """The rows of a file, their texts as bytes."""
    # Not the Parquet reader of datasets: it decodes row groups ahead in threads, so that how much
    # it gives before a damaged one is a race. One group after another always ends at one record.
    import fsspec
    import pyarrow
    from pyarrow.parquet import ParquetFile

    name = fields.text
    columns = {name} if fields.fixed_license else {name, fields.license.partition(".")[0]}
    try:
        with fsspec.open(file.url, "rb") as stream, ParquetFile(stream, pre_buffer=False) as groups:
            names = groups.schema_arrow.names
            if name not in names:
                raise ValueError(f"input file {file.name} has no column {name!r}: {names}")
            columns &= set(names)
            read = partial(groups.iter_batches, _PARQUET_ROWS, use_threads=False)
            for group in range(groups.num_row_groups):
                for rows in read(row_groups=[group], columns=sorted(columns)):
                    # As bytes: one invalid string would fail the conversion of the whole batch.
                    index = rows.schema.get_field_index(name)
                    raw = rows.column(index).cast(pyarrow.large_binary())
                    yield from rows.set_column(index, name, raw).to_pylist()
    except pyarrow.ArrowNotImplementedError as error:
        raise ValueError(
            f"column {name!r} of input file {file.name} is not text: {error}"
        ) from None
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
    return Document(record, text, _licenses(row, fields))


def _licenses(table: dict[str, Any], fields: RecordFields) -> tuple[str, ...]:
    if fields.fixed_license:
        return (fields.fixed_license,)
    value = _field(table, fields.license)
    stated = map(str, value if isinstance(value, list) else [value] if value else [])
    separator = fields.license_separator
    parts = (text.split(separator) if separator else [text] for text in stated)
    names = [name.strip() for text in parts for name in text]
    return tuple(filter(None, names)) or tuple(filter(None, [fields.license_if_none]))


def _field(table: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table
