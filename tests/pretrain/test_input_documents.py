"""Input files of every format give the same documents, from any record on."""

import gzip
import json
from types import SimpleNamespace

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from anchored.pretrain.input_documents import RecordFields, input_documents
from anchored.pretrain.input_files import InputFile, hub_files, local_files

TEXTS = ["salt", "", "r\u00e4in\nand wave", "bell" * 400]
ROWS = [
    {"id": str(number), "text": text, "metadata": {"license": "CC0" if number else None}}
    for number, text in enumerate(TEXTS)
]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def write_parquet(path, rows=ROWS):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS = {
    "a.jsonl": lambda path: path.write_bytes(LINES),
    "a.jsonl.gz": lambda path: path.write_bytes(gzip.compress(LINES)),
    "a.json.zst": lambda path: path.write_bytes(zstandard.compress(LINES)),
    "a.parquet": write_parquet,
}


def documents(path, first_record=0, **fields):
    (file,) = local_files([path], revision="1").files
    return list(input_documents(file, RecordFields(**fields), first_record=first_record))


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("first", [0, 2, 4])
def test_every_format_gives_the_same_documents_from_any_record_on(tmp_path, name, first):
    WRITERS[name](tmp_path / name)
    found = documents(tmp_path / name, first)
    assert [document.record for document in found] == list(range(first, 4))
    assert [document.text for document in found] == [text.encode() for text in TEXTS[first:]]
    assert [document.licences for document in found] == [(), ("CC0",), ("CC0",), ("CC0",)][first:]


def test_lines_that_are_not_utf8_or_not_json_are_single_invalid_documents(tmp_path):
    lines = [b'{"text": "salt"}', b'{"text": "\xff\xfe"}', b'{"text": "cut', b"", b'{"text": "x"}']
    lines.append(b'{"text": "\\ud800"}')
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    texts = [document.text for document in documents(tmp_path / "a.jsonl")]
    assert texts == [b"salt", None, None, b"", b"x", None]


def test_a_parquet_string_that_is_not_utf8_is_a_single_invalid_document(tmp_path):
    raw = pyarrow.array([b"salt", b"\xff\xfe", b"rain"], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    found = documents(tmp_path / "a.parquet", fixed_licence="MIT")
    assert [document.text for document in found] == [b"salt", None, b"rain"]
    assert {document.licences for document in found} == {("MIT",)}


def test_metadata_may_differ_in_type_and_licences_may_be_a_list(tmp_path):
    rows = [
        {"text": "a", "metadata": {"license": ["MIT", "BSD"], "stars": 3}},
        {"text": "b", "metadata": {"license": "CC0", "stars": "three"}},
        {"text": "c", "metadata": "none"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    licences = [document.licences for document in documents(tmp_path / "a.jsonl")]
    assert licences == [("MIT", "BSD"), ("CC0",), ()]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.json.zst"])
def test_a_damaged_file_is_named(tmp_path, name):
    WRITERS[name](tmp_path / name)
    data = bytearray((tmp_path / name).read_bytes())
    data[:4] = b"bang"
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"input file {name} cannot be read"):
        documents(tmp_path / name)


def test_fields_may_be_named(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": {"raw": "salt"}, "license": "CC0"}')
    (document,) = documents(tmp_path / "a.jsonl", text="body.raw", licence="license")
    assert (document.text, document.licences) == (b"salt", ("CC0",))


@pytest.mark.parametrize("row", [{"body": "salt"}, {"text": 3}, ["text"]])
def test_a_record_without_text_is_named(tmp_path, row):
    (tmp_path / "a.jsonl").write_text('{"text": "salt"}\n' + json.dumps(row))
    with pytest.raises(ValueError, match=r"record 1 of a.jsonl has no text in the field 'text'"):
        documents(tmp_path / "a.jsonl")


def test_a_parquet_file_without_the_column_is_refused(tmp_path):
    write_parquet(tmp_path / "a.parquet", [{"body": "salt", "metadata": {"license": "x"}}])
    with pytest.raises(ValueError, match="text"):
        documents(tmp_path / "a.parquet")


def test_folders_are_read_in_the_order_of_names_wherever_they_are(tmp_path):
    for name in ("b/2.jsonl", "b/10.jsonl", "a/9.parquet", "a/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    files = local_files([tmp_path], revision="v1")
    assert [(file.name, file.num_bytes) for file in files.files] == [
        ("a/9.parquet", 5),
        ("b/10.jsonl", 5),
        ("b/2.jsonl", 5),
    ]
    assert files.revision == "v1"


def test_inputs_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"input .*missing does not exist"):
        local_files([tmp_path / "missing"], revision="1")
    with pytest.raises(ValueError, match="holds no file of a supported format"):
        local_files([tmp_path], revision="1")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(ValueError, match=r"a.csv is of no supported format: .jsonl"):
        local_files([tmp_path / "a.csv"], revision="1")
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"different names, got twice: a\.jsonl"):
        local_files([tmp_path / "a.jsonl", tmp_path], revision="1")


def hub_answers(monkeypatch, urls):
    builder = SimpleNamespace(config=SimpleNamespace(data_files={"train": urls}))
    monkeypatch.setattr("datasets.load_dataset_builder", lambda name, revision: builder)


def test_hub_files_carry_the_full_commit(monkeypatch):
    commit = "0641bb8" + "0" * 33
    address = f"hf://datasets/common-pile/wikimedia_filtered@{commit}"
    hub_answers(monkeypatch, [f"{address}/b.json.gz", f"{address}/a/c.json.gz"])
    files = hub_files("common-pile/wikimedia_filtered", revision="0641bb8")
    assert files.revision == commit
    assert files.files == (
        InputFile("a/c.json.gz", f"{address}/a/c.json.gz", 0),
        InputFile("b.json.gz", f"{address}/b.json.gz", 0),
    )


def test_a_hub_dataset_needs_a_revision_and_training_files(monkeypatch):
    with pytest.raises(ValueError, match="a/b needs a revision"):
        hub_files("a/b", revision="")
    hub_answers(monkeypatch, [])
    with pytest.raises(ValueError, match="a/b at revision 1 has no training files"):
        hub_files("a/b", revision="1")
