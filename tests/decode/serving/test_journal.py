"""Journals: what is written, what a killed writer leaves, and ledgers made of it."""

import json
import re
import resource
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

import pytest
from server_accounts import HEADER, drawn

from anchored.decode.ledger import Ledger, LedgerHeader, LedgerStep
from anchored.decode.serving import journal as journal_file
from anchored.decode.serving import journal_reader
from anchored.decode.serving.journal import SCHEMA_LINE, JournalWriter
from anchored.decode.serving.journal_reader import JournalReader, journal_ledgers, journal_names
from anchored.tools.cli import main


def header(**changes) -> LedgerHeader:
    named = {"stop_token_ids": [1], "horizon": 4, "sampling": {"temperature": 1.0}}
    return replace(HEADER, **{**named, **changes})


def step(number: int, token_id: int = 9) -> LedgerStep:
    return replace(drawn(number, 0.5), token_id=token_id)


@pytest.fixture
def written():
    """Makes a journal with a request "a", and steps of it, a line each."""
    with ExitStack() as stack:

        def write(folder, *steps, has_stops=False, **changes) -> JournalWriter:
            writer = stack.enter_context(closing(JournalWriter(folder)))
            writer.open("a", header(**changes), has_stops=has_stops)
            for each in steps:
                writer.steps([("a", each)])
            return writer

        yield write


def ledger_of(folder) -> Ledger:
    (ledger,) = dict(journal_ledgers(folder)).values()
    return ledger


@pytest.mark.parametrize(
    ("steps", "settings", "outcome"),
    [
        ([step(n) for n in range(4)], {}, ([9] * 4, "length", True)),
        ([step(0), step(1)], {"has_stops": True}, ([9, 9], "stop_string", True)),
        ([step(0), step(1)], {}, ([9, 9], "aborted", True)),
        ([step(0)], {"sampling": {"temperature": 0.0}}, ([9], "aborted", False)),
        ([step(0), step(1, 8), step(2, 1)], {}, ([9, 8, 1], "stop_token", True)),
        # One that was drawn again counts by its last line.
        ([step(0), step(1, 8), step(1, 7)], {}, ([9, 7], "aborted", True)),
        # What was drawn beyond the end is left out.
        ([step(0), step(1, 1), step(2)], {}, ([9, 1], "stop_token", True)),
    ],
)
def test_how_a_text_ended(tmp_path, written, steps, settings, outcome):
    written(tmp_path, *steps, **settings)
    ledger = ledger_of(tmp_path)
    assert (ledger.token_ids, ledger.finish_reason, ledger.certified) == outcome
    assert ledger.header == header(**{k: v for k, v in settings.items() if k != "has_stops"})
    ledger.save(tmp_path / "saved.jsonl")
    assert Ledger.load(tmp_path / "saved.jsonl") == ledger


def test_a_line_that_cannot_be_written_is_taken_back_and_others_follow(tmp_path, written):
    writer = written(tmp_path, step(0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:  # a disk that takes ten bytes more
        size = writer.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
        for call in (partial(writer.steps, [("a", step(1, 7))]), writer.try_again):
            with pytest.raises(OSError, match="disk is full"):
                call()
            assert ledger_of(tmp_path).token_ids == [9]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.try_again()
    writer.steps([("a", step(1))])
    assert [json.loads(line) for line in writer.path.read_text().splitlines()][-2] == SCHEMA_LINE
    ledger = ledger_of(tmp_path)
    assert ledger.certified is True and ledger.token_ids == [9, 9]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_line_that_is_not_on_the_disk_is_taken_back_at_once_or_before_the_next_one(
    tmp_path, monkeypatch, is_late
):
    def broken(*_):
        raise OSError("disk I/O error")

    with closing(JournalWriter(tmp_path, is_synced=True)) as writer:
        writer.open("a", header(), has_stops=False)
        whole = writer.path.read_bytes()
        with monkeypatch.context() as patch:
            for call in ("fsync", "ftruncate") if is_late else ("fsync",):
                patch.setattr(journal_file.os, call, broken)
            with pytest.raises(OSError, match="disk I/O error"):
                writer.fail("a", "NaN")
        assert (writer.path.read_bytes() == whole) is not is_late
        writer.steps([("a", step(0))])
    ledger = ledger_of(tmp_path)
    assert (ledger.token_ids, ledger.finish_reason) == ([9], "aborted")


def test_a_reader_follows_the_writer_and_waits_for_whole_lines(tmp_path, written):
    writer, reader = written(tmp_path, step(0)), JournalReader(tmp_path)
    assert reader.refresh() and not reader.refresh()
    with writer.path.open("ab") as file:
        line = json.dumps({"failed": "a", "error": "NaN"}).encode()
        file.write(line[:20])
        file.flush()
        # As a killed server leaves it: the next one goes on in another file.
        with closing(JournalWriter(tmp_path)) as following:
            following.open("b", header(), has_stops=False)
        reader.refresh()
        assert reader.find("a").error == "" and reader.holding("a", 2) is None
        names = {record.request_id for record in JournalReader(tmp_path).ended_records()}
        assert names == {"a", "b"}
        file.write(line[20:] + b"\n")
    reader.refresh()
    assert reader.holding("a", 2).error == "NaN" and reader.find("a").spent is None
    reader.forget("a")
    assert reader.find("a") is None


def test_the_command_writes_a_file_a_request_within_the_folder_and_overwrites_none(
    tmp_path, written, capsys
):
    writer = written(tmp_path / "journal", step(0))
    for name in ("../out/of", ".._out/of"):  # whose names look alike
        writer.open(name, header(), has_stops=False)
        writer.steps([(name, step(0))])
    words = ["ledgers", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]
    for status in (0, 1):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == status
    assert "3 certified" in capsys.readouterr().out
    *others, last = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert last == "a.jsonl" and len(others) == 2
    assert all(re.fullmatch(r"\.\._out_of-[0-9a-f]{16}\.jsonl", name) for name in others)


def test_a_reader_knows_nothing_of_files_that_it_skips_and_of_others_requests(tmp_path, written):
    written(tmp_path, step(0))
    names = set()
    reader = JournalReader(tmp_path, skipped=journal_names(tmp_path), only=names)
    writer = written(tmp_path, step(0), step(1))
    reader.refresh()
    assert list(reader.records()) == []
    names.add("b")
    writer.open("b", header(), has_stops=False)
    writer.steps([("b", step(0)), ("a", step(2))])
    reader.refresh()
    (record,) = reader.records()
    assert (record.request_id, len(record.steps)) == ("b", 1)


def rotated(folder, num_texts=40):
    """A journal of many small files: texts of which one in four is broken off."""
    writer = JournalWriter(folder, max_bytes=3000)
    for start in range(0, num_texts, 4):
        names = [f"r{start + n}" for n in range(4)]
        for name in names:
            writer.open(name, header(horizon=6), has_stops=False)
        for place in range(6):
            writer.steps([(n, step(place)) for n in names[: 4 if place < 3 else 3]])
        for name in names:
            writer.end(name)
    return writer


def test_a_full_file_is_continued_by_the_next_one_and_opened_once(tmp_path, monkeypatch):
    opened, reader = [], JournalReader(tmp_path)

    def noted(path, mode):
        opened.append(path)
        return open(path, mode)

    monkeypatch.setattr(journal_reader, "open", noted, raising=False)
    writer = rotated(tmp_path)
    files = sorted(tmp_path.iterdir())
    assert len(files) > 5 and all(file.stat().st_size < 6000 for file in files)
    for file in files[:-1]:
        assert json.loads(file.read_text().splitlines()[-1]) == {"full": True}
    while reader.refresh():
        pass
    assert sorted(opened) == list(map(str, files)) and len(list(reader.records())) == 40
    writer.steps([("r3", step(3))])
    assert reader.refresh() and not reader.refresh() and opened[-1] == str(writer.path)
    writer.path.unlink()  # its operator has moved it away
    assert not reader.refresh() and len(list(reader.records())) == 40
    writer.close()


def test_a_journal_of_any_size_is_read_with_few_texts_in_memory(tmp_path):
    rotated(tmp_path, num_texts=200).close()
    reader, counts = JournalReader(tmp_path), []
    for number, record in enumerate(reader.ended_records()):
        counts.append(len(list(reader.records())))
        outcome = (len(record.drawn), record.ledger().finish_reason)
        assert outcome == ((3, "aborted") if number % 4 == 3 else (6, "length"))
    assert len(counts) == 200 and max(counts) < 20
