"""Documents on their way into shards: where each goes, and how files of every format give them."""

import gzip
import json
import random
import time
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

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
from anchored.pretrain.tokens.input_files import InputFile, hub_files, local_files

PATTERNS = ("CC0", "Public Domain*", "Creative Commons - Attribution - *", "CC BY [1-4].*")
PATTERNS += ("MIT License*", "Apache 2 License*", "NCSA", "My Non-Commercial Licence")


@pytest.mark.parametrize(
    ("licenses", "expected"),
    [
        # All of a document's licenses must be on the list, whatever their case.
        *[(one, Verdict.TRAIN) for one in ("CC0", "Public Domain - USA", "public domain", "NCSA")],
        *[(("CC0", "CC BY 4.0"), Verdict.TRAIN), ((), Verdict.REFUSED)],
        *[("CC BY-NC", Verdict.REFUSED), (("CC0", "GPL"), Verdict.REFUSED)],
        # What may not be sold or changed is refused whatever pattern it matches.
        ("Creative Commons - Attribution - NonCommercial - 4.0", Verdict.REFUSED),
        ("Creative Commons - Attribution - Non-Commercial 4.0", Verdict.REFUSED),
        ("Creative Commons - Attribution - NoDerivatives 4.0", Verdict.REFUSED),
        ("Creative Commons - Attribution - No Derivs 4.0", Verdict.REFUSED),
        *[
            (f"CC BY 4.0{how}", Verdict.REFUSED)
            for how in (" NonCommercial", "-NC", " ND", "_nc_sa")
        ],
        ("MIT License + Commons Clause", Verdict.REFUSED),
        ("Apache 2 License with Commons-Clause", Verdict.REFUSED),
        ("Creative Commons - Attribution - https://example.org/and/", Verdict.TRAIN),
        ("My Non-Commercial Licence", Verdict.TRAIN),  # a list that names it means it
    ],
)
def test_documents_are_judged_by_all_of_their_licenses(licenses, expected):
    named = (licenses,) if isinstance(licenses, str) else licenses
    assert DocumentRules(licenses=PATTERNS).verdict(Document(0, b"salt", named)) is expected


def test_documents_are_judged_by_their_text_and_rules_must_make_sense():
    rules = DocumentRules(max_document_bytes=10)
    texts = (b"ten bytes!", b"ten bytes!!", b"", None)
    assert [rules.verdict(Document(0, text)) for text in texts] == [
        *(Verdict.TRAIN, Verdict.OVERSIZED, Verdict.EMPTY, Verdict.INVALID)
    ]
    with pytest.raises(ValueError, match="max_document_bytes must be at least 1, got 0"):
        DocumentRules(max_document_bytes=0)
    for fraction in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"must be in \[0, 1\), got {fraction}"):
            DocumentRules(heldout_fraction=fraction)


def test_the_held_out_share_is_as_asked_and_depends_on_the_text_alone():
    rules = DocumentRules(heldout_fraction=0.1)
    texts = [f"document {number}".encode() for number in range(20_000)]
    heldout = {text for text in texts if rules.verdict(Document(0, text)) is Verdict.HELDOUT}
    # 20,000 draws at 0.1: a deviation of 4.5 standard deviations has probability 7e-6.
    assert abs(len(heldout) - 2000) < 4.5 * (20_000 * 0.1 * 0.9) ** 0.5
    again = {text for text in texts if rules.verdict(Document(7, text, ("x",))) is Verdict.HELDOUT}
    assert again == heldout


TEXTS = ["salt", "", None, "r\u00e4in\nand wave", "bell" * 200]
ROWS = [
    {"id": str(number), "text": text, "metadata": {"license": "CC0" if number else None}}
    for number, text in enumerate(TEXTS)
]


def write(path, rows):
    """Rows in the format that the name of the file says."""
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=300)
        return
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(lines))


NAMES = ("a.jsonl", "a.jsonl.gz", "a.json.zst", "a.parquet")


def documents(path, first_record=0, max_document_bytes=1000, **fields):
    (file,) = local_files([path], revision="1").files
    limits = {"first_record": first_record, "max_document_bytes": max_document_bytes}
    return list(input_documents(file, RecordFields(**fields), **limits))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", [0, 2, 3, 5])
def test_every_format_gives_the_same_documents_from_any_record_on(tmp_path, name, first):
    write(tmp_path / name, ROWS)
    cc0, no_text = {"licenses": ("CC0",)}, {"problem": Problem.NO_TEXT}
    facts = [{}, cc0, no_text, cc0, cc0]
    expected = [
        Document(record, None if text is None else text.encode(), **fact)
        for record, (text, fact) in enumerate(zip(TEXTS, facts, strict=True))
    ]
    assert documents(tmp_path / name, first) == expected[first:]
    if name.endswith(("gz", "zst")):  # all members of a compressed file are read
        (tmp_path / name).write_bytes(2 * (tmp_path / name).read_bytes())
        assert [one.text for one in documents(tmp_path / name)] == 2 * [
            one.text for one in expected
        ]


def test_lines_without_text_that_can_be_read_are_single_invalid_documents(tmp_path):
    lines = {
        b'{"text": "salt"}': None,
        b'{"text": "\xff\xfe"}': Problem.NOT_UTF8,
        b'{"text": "\\ud800"}': Problem.NOT_UTF8,
        b'{"text": "cut': Problem.NOT_JSON,
        b"[" * 200_000: Problem.NOT_JSON,
        b'{"text": null}': Problem.NO_TEXT,
        b'{"text": 3}': Problem.NO_TEXT,
        b'{"body": "salt"}': Problem.NO_TEXT,
        b'["text"]': Problem.NO_TEXT,
        b"": None,
        b'{"text": "x"}': None,
    }
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    read = documents(tmp_path / "a.jsonl")
    assert [document.problem for document in read] == list(lines.values())
    texts = [document.text for document in read]
    assert texts == [b"salt", *[None] * 8, b"", b"x"]


def test_a_parquet_string_that_is_not_utf8_is_a_single_invalid_document(tmp_path):
    raw = pyarrow.array([b"salt", b"\xff\xfe", b"rain"], pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    read = documents(tmp_path / "a.parquet", fixed_license="MIT")
    assert [document.text for document in read] == [b"salt", None, b"rain"]
    assert [document.licenses for document in read] == [("MIT",), (), ("MIT",)]


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
    write(tmp_path / "a.parquet", [{"text": "salt"}])
    assert documents(tmp_path / "a.parquet") == [Document(0, b"salt")]


LONG = 40_000_000
LONG_NAMES = ("a.jsonl", "a.jsonl.gz", "a.json.zst", "array.json", "array.json.gz", "a.parquet")


@pytest.mark.parametrize("name", LONG_NAMES)
@pytest.mark.parametrize("is_last", [False, True])
def test_a_text_that_is_too_long_is_never_decoded_and_counts_as_oversized(tmp_path, name, is_last):
    rows = [{"text": "salt"}, {"text": "x" * LONG}, *[{"text": "rain"}] * (not is_last)]
    write(tmp_path / name, [rows] if name.startswith("array") else rows)
    del rows
    tracemalloc.start()
    try:
        read = documents(tmp_path / name)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 1 MiB of a record, a block of at most 8 MiB, and its pieces; a column is not Python's memory.
    assert peak < LONG
    assert [one.text for one in read] == [b"salt", None, *[b"rain"] * (not is_last)]
    verdicts = list(map(DocumentRules(max_document_bytes=1000).verdict, read))
    assert verdicts == [Verdict.TRAIN, Verdict.OVERSIZED, *[Verdict.TRAIN] * (not is_last)]


@pytest.mark.parametrize("name", ["a.jsonl", "array.json"])
def test_the_time_of_a_line_grows_with_its_length_alone(tmp_path, name):
    def seconds(length):
        rows = [{"text": "x" * length}]
        write(tmp_path / name, [rows] if name.startswith("array") else rows)
        start = time.process_time()
        (document,) = documents(tmp_path / name, max_document_bytes=length)
        assert len(document.text) == length
        return time.process_time() - start

    # 16 times as long; with the square of it, 256 times the copying. The least of three is calm.
    long, short = (min(seconds(length) for _ in range(3)) for length in (32_000_000, 2_000_000))
    assert long < 64 * short


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.binary()])
def test_parquet_texts_that_are_too_long_are_left_out_of_a_batch_one_by_one(tmp_path, kind):
    text = pyarrow.array(["salt", "x" * 1001, None, "x" * 1000] * 200, kind)
    pyarrow.parquet.write_table(pyarrow.table({"text": text}), tmp_path / "a.parquet")
    read = documents(tmp_path / "a.parquet")
    texts = [(b"salt", False), (None, True), (None, False), (b"x" * 1000, False)]
    assert [(one.text, one.is_too_long) for one in read] == texts * 200
    assert [one.problem for one in read] == [None, None, Problem.NO_TEXT, None] * 200


@pytest.mark.parametrize("num_zeros", [1, 511, 512, 70_000])
def test_zeros_after_a_member_of_gzip_are_no_damage_and_elsewhere_they_are(tmp_path, num_zeros):
    row, zeros = b'{"text": "salt"}\n', bytes(num_zeros)
    member = gzip.compress(row)
    (tmp_path / "a.jsonl.gz").write_bytes(member + zeros + member + zeros)
    assert [one.text for one in documents(tmp_path / "a.jsonl.gz")] == [b"salt", b"salt"]
    for name, data in {
        "b.jsonl.gz": zeros + member,
        "c.jsonl.gz": member + zeros + b"salt",
        "d.jsonl.zst": zstandard.compress(row) + zeros,
    }.items():
        (tmp_path / name).write_bytes(data)
        assert documents(tmp_path / name)[-1].problem is Problem.DAMAGED
    (tmp_path / "e.jsonl.gz").write_bytes(b"")
    assert documents(tmp_path / "e.jsonl.gz") == []


ELEMENTS = [
    {"text": "salt"},
    {"text": '[{"\\"]},', "more": [[1, {"a": "]"}], {}]},
    {"text": None},
    "text",
    7,
    ["text"],
    {"text": "r\u00e4in\\"},
]


@pytest.mark.parametrize(
    ("frame", "block_bytes"),
    [*[("%s", size) for size in (1, 2, 3, 7, 1 << 16)], ("\ufeff \n%s\n\n", 1 << 16)],
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_that_is_one_array_has_its_elements_as_records(
    tmp_path, monkeypatch, block_bytes, indent, frame
):
    monkeypatch.setattr("anchored.pretrain.tokens.lines._READ_BYTES", block_bytes)
    text = json.dumps(ELEMENTS, indent=indent, ensure_ascii=False)
    (tmp_path / "a.json").write_text(frame % text)
    read = documents(tmp_path / "a.json")
    assert [one.record for one in read] == list(range(7))
    texts = [b"salt", ELEMENTS[1]["text"].encode(), *[None] * 4, ELEMENTS[6]["text"].encode()]
    assert [one.text for one in read] == texts
    assert {one.problem for one in read} == {None, Problem.NO_TEXT}
    (tmp_path / "a.json").write_text(text[:-9])
    assert [one.problem for one in documents(tmp_path / "a.json", 6)] == [Problem.NOT_JSON]


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        ("[]", []),
        ("[\n]\n", []),
        ('["text"]\n{"text": "salt"}\n', [None, b"salt"]),
        ("[1]\n[2, 3]\n", [None, None]),
        ("[[[[[\n[[[[", [None]),
        ('[{"text": "salt"}', [b"salt"]),
    ],
)
def test_arrays_that_are_empty_lines_or_cut(tmp_path, text, texts):
    (tmp_path / "a.jsonl").write_text(text)
    assert [one.text for one in documents(tmp_path / "a.jsonl")] == texts


def many_rows(count):
    """Texts that do not compress well, so that half of a file is about half of its rows."""
    generator = random.Random(3)
    return [{"text": generator.randbytes(40).hex(), "metadata": None} for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "is_cut", "least", "most"),
    [
        ("a.jsonl.gz", True, 2900, 3000),
        # zstd decodes blocks of 128 KiB, some 1200 rows, and one of them may be lost.
        ("a.json.zst", True, 1800, 3000),
        ("a.parquet", True, 0, 0),  # its footer, without which nothing can be read
        ("a.parquet", False, 2400, 3000),
    ],
)
def test_a_file_cut_short_or_damaged_ends_with_one_invalid_document(
    tmp_path, caplog, name, is_cut, least, most
):
    path, rows = tmp_path / name, many_rows(6000)
    write(path, rows)
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    path.write_bytes(data[:middle] + (b"" if is_cut else bytes(300) + data[middle + 300 :]))
    *whole, rest = documents(path)
    assert least <= len(whole) <= most
    assert [one.text.decode() for one in whole] == [row["text"] for row in rows[: len(whole)]]
    assert (rest.record, rest.text, rest.problem) == (len(whole), None, Problem.DAMAGED)
    assert f"{name} is damaged from record {len(whole)} on" in caplog.text
    assert documents(path, 250) == [*whole[250:], replace(rest, record=max(250, len(whole)))]


@pytest.mark.parametrize("name", NAMES)
def test_an_absent_file_is_an_error_and_one_of_another_format_an_invalid_document(tmp_path, name):
    file = InputFile(name, str(tmp_path / name), 1)
    with pytest.raises(ValueError, match=f"input file {name} cannot be read: .*No such file"):
        list(input_documents(file, RecordFields()))
    (tmp_path / name).write_bytes(b"<html>404</html>")
    problem = Problem.NOT_JSON if name == "a.jsonl" else Problem.DAMAGED
    assert documents(tmp_path / name) == [Document(0, None, problem=problem)]


def test_a_connection_that_breaks_is_an_error_and_no_damage(tmp_path, monkeypatch):
    def broken(*arguments):
        raise ConnectionError("server disconnected")

    write(tmp_path / "a.parquet", ROWS)
    monkeypatch.setattr("fsspec.open", broken)
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read: server disconnected"):
        documents(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"body": "salt", "metadata": 1}, r"a\.parquet has no column 'text': \['body', 'metadata'"),
        ({"text": 3}, r"column 'text' of input file a\.parquet is int64"),
    ],
)
def test_a_parquet_file_without_a_column_of_texts_is_refused(tmp_path, row, message):
    write(tmp_path / "a.parquet", [row])
    with pytest.raises(ValueError, match=message):
        documents(tmp_path / "a.parquet")


def test_folders_are_read_in_the_order_of_names_wherever_they_are(tmp_path):
    for name in ("b/2.jsonl", "b/10.jsonl", "a/9.parquet", "a/readme.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    files = local_files([tmp_path], revision="v1")
    named = [(file.name, file.num_bytes) for file in files.files]
    assert named == [("a/9.parquet", 5), ("b/10.jsonl", 5), ("b/2.jsonl", 5)]
    assert files.revision == "v1"


def test_inputs_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"input .*missing does not exist"):
        local_files([tmp_path / "missing"], revision="1")
    with pytest.raises(ValueError, match=r"supported format: \.jsonl, .*\.parquet \(.*gz"):
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


def test_hub_files_need_a_revision_and_carry_the_full_commit(monkeypatch):
    with pytest.raises(ValueError, match="a/b needs a revision"):
        hub_files("a/b", revision="")
    hub_answers(monkeypatch, [])
    with pytest.raises(ValueError, match="a/b at revision 1 has no training files"):
        hub_files("a/b", revision="1")
    commit = "0641bb8" + "0" * 33
    address = f"hf://datasets/common-pile/wikimedia_filtered@{commit}"
    hub_answers(monkeypatch, [f"{address}/b.json.gz", f"{address}/a/c.json.gz"])
    # A source gives tokens in proportion to the bytes of its files, so their sizes are asked for.
    folder = f"datasets/common-pile/wikimedia_filtered@{commit}"
    sizes = {f"{folder}/a/c.json.gz": {"size": 300}, f"{folder}/b.json.gz": {"size": 100}}

    def listed(system, path, *, detail):
        assert path == folder and detail
        return sizes

    monkeypatch.setattr("huggingface_hub.HfFileSystem.find", listed)
    files = hub_files("common-pile/wikimedia_filtered", revision="0641bb8")
    assert files.revision == commit
    assert files.files == (
        InputFile("a/c.json.gz", f"{address}/a/c.json.gz", 300),
        InputFile("b.json.gz", f"{address}/b.json.gz", 100),
    )
