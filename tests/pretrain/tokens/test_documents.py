"""Documents on their way into shards: where each goes, and how files of every format give them."""

import gzip
import json
import random
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from anchored.pretrain.tokens.documents import (
    NO_LICENSE,
    Document,
    DocumentRules,
    Problem,
    RecordFields,
    Verdict,
    input_documents,
)
from anchored.pretrain.tokens.input_files import hub_files, local_files

PATTERNS = ("CC0", "Public Domain*", "CC BY [1-4].*", "NCSA", "My Non-Commercial Licence")
TRAINED = [("public domain - USA",), ("NCSA",), ("CC0", "CC BY 4.0")]
TRAINED.append(("My Non-Commercial Licence",))  # a list that names it means it
# What may not be sold or changed is refused whatever pattern it matches.
REFUSED = [(), ("CC0", "GPL"), ("CC BY 4.0 NonCommercial",), ("CC BY 4.0_nc_sa",)]
REFUSED += [("CC BY 4.0 No Derivs",), ("CC BY 4.0 ND",), ("Public Domain + Commons Clause",)]


def test_documents_are_judged_by_all_of_their_licenses_and_by_their_text():
    rules = DocumentRules(licenses=PATTERNS)
    for verdict, cases in ((Verdict.TRAIN, TRAINED), (Verdict.REFUSED, REFUSED)):
        for licenses in cases:
            assert rules.verdict(Document(0, b"salt", licenses)) is verdict, licenses
    rules = DocumentRules(max_document_bytes=10)
    texts = (b"ten bytes!", b"ten bytes!!", b"", None)
    assert [rules.verdict(Document(0, text)) for text in texts] == [
        *(Verdict.TRAIN, Verdict.OVERSIZED, Verdict.EMPTY, Verdict.INVALID)
    ]


def test_the_held_out_share_depends_on_the_text_alone():
    rules = DocumentRules(heldout_fraction=0.1)
    texts = [f"document {number}".encode() for number in range(5000)]
    heldout = {text for text in texts if rules.verdict(Document(0, text)) is Verdict.HELDOUT}
    # 5,000 draws at 0.1: a deviation of 4.5 standard deviations has probability 7e-6.
    assert abs(len(heldout) - 500) < 4.5 * (5000 * 0.1 * 0.9) ** 0.5
    again = {text for text in texts if rules.verdict(Document(7, text, ("x",))) is Verdict.HELDOUT}
    assert again == heldout


TEXTS = ["salt", "", None, "r\u00e4in\nand wave", "bell" * 200]
ROWS = [
    {"id": str(number), "text": text, "metadata": {"license": "CC0" if number else None}}
    for number, text in enumerate(TEXTS)
]
NAMES = ("a.jsonl", "a.jsonl.gz", "a.json.zst", "array.json", "a.parquet")


def write(path, rows):
    """Rows in the format that the name of the file says."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=300)
        return
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if path.name.startswith("array"):
        text = f"\ufeff \n{json.dumps(rows, indent=1)}\n"
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(text.encode()))


def documents(path, first_record=0, max_document_bytes=1000, **fields):
    (file,) = local_files([path], revision="1").files
    limits = {"first_record": first_record, "max_document_bytes": max_document_bytes}
    return list(input_documents(file, RecordFields(**fields), **limits))


@pytest.mark.parametrize("name", NAMES)
def test_every_format_gives_the_same_documents_from_any_record_on(tmp_path, name):
    write(tmp_path / name, ROWS)
    cc0, no_text = {"licenses": ("CC0",)}, {"problem": Problem.NO_TEXT}
    facts = [{}, cc0, no_text, cc0, cc0]
    expected = [
        Document(record, None if text is None else text.encode(), **fact)
        for record, (text, fact) in enumerate(zip(TEXTS, facts, strict=True))
    ]
    for first in (0, 2, 5):
        assert documents(tmp_path / name, first) == expected[first:]
    if name.endswith(("gz", "zst")):  # all members of a compressed file are read
        (tmp_path / name).write_bytes(2 * (tmp_path / name).read_bytes())
        texts = [one.text for one in expected]
        assert [one.text for one in documents(tmp_path / name)] == 2 * texts


def test_lines_without_text_that_can_be_read_are_single_invalid_documents(tmp_path):
    lines = {
        b'{"text": "salt"}': None,
        b'{"text": "\xff\xfe"}': Problem.NOT_UTF8,
        b'{"text": "\\ud800"}': Problem.NOT_UTF8,
        b'{"text": "cut': Problem.NOT_JSON,
        b"[" * 200_000: Problem.NOT_JSON,
        b'{"text": 3}': Problem.NO_TEXT,
        b"": None,
        b'["text"]': Problem.NO_TEXT,
    }
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    read = documents(tmp_path / "a.jsonl")
    assert [document.problem for document in read] == list(lines.values())
    assert [document.text for document in read] == [b"salt", *[None] * 5, b"", None]


def test_an_array_that_is_not_whole_or_too_large_is_refused(tmp_path, monkeypatch):
    for content in ('[{"text": "salt"}', "[" * 200_000):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(ValueError, match=r"input file a\.json is no whole JSON array: "):
            documents(tmp_path / "a.json")
    monkeypatch.setattr("anchored.pretrain.tokens.input_files.MAX_ARRAY_BYTES", 100_000)
    write(tmp_path / "array.json.gz", ROWS * 200)
    with pytest.raises(ValueError, match=r"a JSON array of more than 100,000 bytes: write lines"):
        documents(tmp_path / "array.json.gz")


def test_a_parquet_string_that_is_not_utf8_is_a_single_invalid_document(tmp_path):
    raw = pyarrow.array([b"salt", b"\xff\xfe"], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(2, raw.buffers()[1], raw.buffers()[2])
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    read = documents(tmp_path / "a.parquet", fixed_license="MIT")
    assert [(one.text, one.licenses) for one in read] == [(b"salt", ("MIT",)), (None, ())]


def test_fields_may_be_named_and_differ_in_type_and_licenses_be_several_or_missing(tmp_path):
    rows = [
        {"text": "a", "metadata": {"license": ["MIT", "BSD"], "stars": 3}},
        {"text": "b", "metadata": {"license": "CC0", "stars": "three"}},
        {"text": "c", "metadata": "none"},
        {"body": {"raw": "salt"}, "license": "CC0"},
    ]
    write(tmp_path / "a.jsonl", rows)
    *read, _ = documents(tmp_path / "a.jsonl")
    assert [one.licenses for one in read] == [("MIT", "BSD"), ("CC0",), ()]
    assert [one.license for one in read] == ["MIT AND BSD", "CC0", NO_LICENSE]
    (salt,) = documents(tmp_path / "a.jsonl", 3, text="body.raw", license="license")
    assert (salt.text, salt.licenses) == (b"salt", ("CC0",))


def test_a_line_that_is_too_long_is_not_held_in_memory_and_counts_as_oversized(tmp_path):
    num_chars = 10_000_000
    write(tmp_path / "a.jsonl.gz", [{"text": one} for one in ("salt", "x" * num_chars, "rain")])
    tracemalloc.start()
    read = documents(tmp_path / "a.jsonl.gz")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < num_chars  # 1 MiB of a record and a block's pieces
    assert [one.text for one in read] == [b"salt", None, b"rain"]
    assert DocumentRules().verdict(read[1]) is Verdict.OVERSIZED


def test_zeros_after_a_member_of_gzip_are_no_damage_and_before_it_they_are(tmp_path):
    member, zeros = gzip.compress(b'{"text": "salt"}\n'), bytes(512)
    (tmp_path / "a.jsonl.gz").write_bytes(member + zeros + member + zeros)
    assert [one.text for one in documents(tmp_path / "a.jsonl.gz")] == [b"salt", b"salt"]
    (tmp_path / "b.jsonl.gz").write_bytes(member + zeros + b"salt")
    assert documents(tmp_path / "b.jsonl.gz")[-1].problem is Problem.DAMAGED


@pytest.mark.parametrize(
    ("name", "is_cut", "least"),
    [
        ("a.jsonl.gz", True, 2900),
        # zstd decodes blocks of 128 KiB, some 1200 rows, and one of them may be lost.
        ("a.json.zst", True, 1800),
        ("a.parquet", False, 2400),
    ],
)
def test_a_file_cut_short_or_damaged_ends_with_one_invalid_document(
    tmp_path, caplog, name, is_cut, least
):
    # Texts that do not compress well, so that half of a file is about half of its rows.
    path, generator = tmp_path / name, random.Random(3)
    rows = [{"text": generator.randbytes(40).hex(), "metadata": None} for _ in range(6000)]
    write(path, rows)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    path.write_bytes(data[:middle] + (b"" if is_cut else bytes(300) + data[middle + 300 :]))
    *whole, rest = documents(path)
    assert least <= len(whole) <= 3000
    assert [one.text.decode() for one in whole] == [row["text"] for row in rows[: len(whole)]]
    assert (rest.record, rest.text, rest.problem) == (len(whole), None, Problem.DAMAGED)
    assert f"{name} is damaged from record {len(whole)} on" in caplog.text
    assert documents(path, 250) == [*whole[250:], replace(rest, record=max(250, len(whole)))]


def test_what_cannot_be_read_now_is_an_error_and_no_damage(tmp_path, monkeypatch):
    write(tmp_path / "a.parquet", [{"body": "salt", "metadata": 1}])
    with pytest.raises(ValueError, match=r"a\.parquet has no column 'text': \['body', 'metadata'"):
        documents(tmp_path / "a.parquet")
    write(tmp_path / "a.parquet", [{"text": 3}])
    with pytest.raises(ValueError, match=r"column 'text' of input file a\.parquet is not text"):
        documents(tmp_path / "a.parquet")
    monkeypatch.setattr("fsspec.open", Mock(side_effect=ConnectionError("server disconnected")))
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read: server disconnected"):
        documents(tmp_path / "a.parquet")


def test_folders_are_read_in_the_order_of_names_wherever_they_are(tmp_path):
    for name in ("b/2.jsonl", "b/10.jsonl", "a/9.parquet", "a/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    files = local_files([tmp_path], revision="v1")
    named = [(file.name, file.num_bytes) for file in files.files]
    assert named == [("a/9.parquet", 5), ("b/10.jsonl", 5), ("b/2.jsonl", 5)]
    (tmp_path / "empty").mkdir()
    for paths, message in (
        ([tmp_path / "missing"], r"input .*missing does not exist"),
        ([tmp_path / "empty"], r"supported format: \.jsonl, .*\.parquet \(.*gz"),
        ([tmp_path / "a/readme.md"], r"readme.md is of no supported format: .jsonl"),
        ([tmp_path / "b", tmp_path / "b"], r"different names, got twice: 10\.jsonl"),
    ):
        with pytest.raises(ValueError, match=message):
            local_files(paths, revision="1")


def test_hub_files_need_a_revision_and_carry_the_full_commit(monkeypatch):
    with pytest.raises(ValueError, match="a/b needs a revision"):
        hub_files("a/b", revision="")
    commit = "0641bb8" + "0" * 33
    folder = f"datasets/common-pile/wikimedia_filtered@{commit}"
    urls = [f"hf://{folder}/b.json.gz", f"hf://{folder}/a/c.json.gz"]
    builder = SimpleNamespace(config=SimpleNamespace(data_files={"train": urls}))
    monkeypatch.setattr("datasets.load_dataset_builder", lambda name, revision: builder)
    sizes = {f"{folder}/a/c.json.gz": {"size": 300}, f"{folder}/b.json.gz": {"size": 100}}
    find = "huggingface_hub.HfFileSystem.find"
    monkeypatch.setattr(find, lambda system, path, *, detail: {folder: sizes}[path])
    files = hub_files("common-pile/wikimedia_filtered", revision="0641bb8")
    assert files.revision == commit
    named = [(file.name, file.url, file.num_bytes) for file in files.files]
    assert named == [("a/c.json.gz", urls[1], 300), ("b.json.gz", urls[0], 100)]
