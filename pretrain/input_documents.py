"""The documents of one input file, one record after another."""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import zstandard

from .document import Document
from .input_files import InputFile

_READ_BYTES = 1 << 20
_PARQUET_ROWS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFields:
    """Where a record holds what is read of it; dots go into nested objects."""

    text: str = "text"
    licence: str = "metadata.license"
    """A name or a list of names."""
    fixed_licence: str = ""
    """The licence of every document, where records do not state it."""


def input_documents(
    file: InputFile, fields: RecordFields, *, first_record: int = 0
) -> Iterator[Document]:
    """Documents from record `first_record` on. Raises ValueError if records have no text field."""
    read = _parquet_documents if file.is_parquet else _json_documents
    return read(file, fields, first_record)


def _json_documents(file: InputFile, fields: RecordFields, first: int) -> Iterator[Document]:
    # Not the JSON reader of datasets: it gives up 10 MB for one invalid byte, and a file where
    # metadata differ from row to row. fsspec is what datasets opens files with, hf:// included.
    import fsspec

    try:
        with fsspec.open(file.url, "rb", compression=_compression(file.name)) as stream:
            for record, line in enumerate(_lines(stream)):
                if record >= first:
                    yield _json_document(line, record, file, fields)
    except (EOFError, OSError, zlib.error, zstandard.ZstdError) as error:
        raise ValueError(f"input file {file.name} cannot be read: {error}") from error


def _lines(stream: BinaryIO) -> Iterator[bytes]:
    rest = b""
    while block := stream.read(_READ_BYTES):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
    if rest:
        yield rest


def _json_document(line: bytes, record: int, file: InputFile, fields: RecordFields) -> Document:
    if not line.strip():
        return Document(record, b"")
    try:
        table = json.loads(line)
    except ValueError:  # not JSON, or not UTF-8
        return Document(record, None)
    text = _field(table, fields.text)
    if not isinstance(text, str):
        _refuse_text(file, record, fields)
    return Document(record, _utf8(text), _licences(table, fields))


def _parquet_documents(file: InputFile, fields: RecordFields, first: int) -> Iterator[Document]:
    from datasets import load_dataset

    columns = [fields.text.partition(".")[0], fields.licence.partition(".")[0]]
    if fields.fixed_licence:
        columns = columns[:1]
    rows = load_dataset(
        "parquet",
        data_files={"train": [file.url]},
        split="train",
        columns=list(dict.fromkeys(columns)),
        streaming=True,
    ).with_format("arrow")
    record = first
    for table in rows.skip(first).iter(batch_size=_PARQUET_ROWS):
        for row in _decoded_rows(table, fields.text):
            if not isinstance(row[fields.text], bytes | None):
                _refuse_text(file, record, fields)
            text = _checked(row[fields.text] or b"")
            yield Document(record, text, _licences(row, fields))
            record += 1


def _decoded_rows(table: Any, text_column: str) -> list[dict[str, Any]]:
    import pyarrow

    # As bytes: one invalid string would otherwise fail the conversion of the whole batch.
    place = table.schema.get_field_index(text_column)
    if place < 0:
        raise ValueError(f"a parquet input has no column {text_column}: {table.column_names}")
    raw = table.column(place).cast(pyarrow.large_binary())
    rows: list[dict[str, Any]] = table.set_column(place, text_column, raw).to_pylist()
    return rows


def _licences(table: dict[str, Any], fields: RecordFields) -> tuple[str, ...]:
    if fields.fixed_licence:
        return (fields.fixed_licence,)
    value = _field(table, fields.licence)
    if isinstance(value, list):
        return tuple(str(licence) for licence in value)
    return (str(value),) if value else ()


def _field(table: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        if not isinstance(table, dict):
            return None
        table = table.get(key)
    return table


def _utf8(text: str) -> bytes | None:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, escaped in JSON
        return None


def _checked(data: bytes) -> bytes | None:
    try:
        data.decode()
    except UnicodeDecodeError:
        return None
    return data


def _compression(name: str) -> str | None:
    if name.endswith(".gz"):
        return "gzip"
    return "zstd" if name.endswith((".zst", ".zstd")) else None


def _refuse_text(file: InputFile, record: int, fields: RecordFields) -> None:
    raise ValueError(f"record {record} of {file.name} has no text in the field {fields.text!r}")
