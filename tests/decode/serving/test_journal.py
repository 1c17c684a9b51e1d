"""Journals: what is written, what a killed writer leaves, and ledgers made of it."""

import json
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from anchored.decode.ledger import Ledger, LedgerError, LedgerHeader, LedgerStep
from anchored.decode.serving import journal as journal_file
from anchored.decode.serving import journal_reader
from anchored.decode.serving.journal import JournalWriter
from anchored.decode.serving.journal_reader import JournalError, JournalReader, journal_ledgers
from anchored.tools.cli import main


def header(**changes) -> LedgerHeader:
    fields = {
        "rule": "anchored",
        "rule_settings": {"k": 1.0},
        "sampling": {"temperature": 1.0},
        "seed": 3,
        "prompt_token_ids": [5, 6],
        "stop_token_ids": [1],
        "fingerprints": {"safe": "a", "risky": "b"},
        "dtype": "float32",
        "debt": 0.25,
        "k": 1.0,
        "K": 4.0,
        "horizon": 4,
        "bound": 3.75,
    }
    return LedgerHeader(**{**fields, **changes})


def step(number: int, token_id: int = 9, spend: float = 0.5) -> LedgerStep:
    return LedgerStep(
        step=number,
        token_id=token_id,
        accepted=True,
        budget=1.0,
        spend=spend,
        weight=0.5,
        log_prob=-1.0,
        safe_log_prob=float("-inf"),
    )


@pytest.fixture
def written():
    """Makes a journal with a request "a-12345678", and steps of it, a line each."""
    with ExitStack() as stack:

        def write(folder, *lines, has_stops=False, **changes) -> JournalWriter:
            writer = stack.enter_context(closing(JournalWriter(folder)))
            writer.open("a-12345678", header(**changes), has_stops=has_stops)
            for line in lines:
                writer.steps([("a-12345678", ledger_step) for ledger_step in line])
            return writer

        yield write


def test_a_journal_becomes_the_ledger_of_what_was_drawn(tmp_path, written):
    written(tmp_path, [step(0)], [step(1, 8), step(2)], [step(3, 1)])
    ((name, ledger),) = journal_ledgers(tmp_path)
    assert name == "a-12345678"
    assert ledger.header == header()
    assert ledger.steps == [step(0), step(1, 8), step(2), step(3, 1)]
    assert (ledger.finish_reason, ledger.certified) == ("stop_token", True)
    ledger.save(tmp_path / "own.jsonl")
    assert Ledger.load(tmp_path / "own.jsonl") == ledger


@pytest.mark.parametrize(
    ("steps", "settings", "outcome"),
    [
        ([step(n) for n in range(4)], {}, ([9] * 4, "length", True)),
        ([step(0), step(1)], {"has_stops": True}, ([9, 9], "stop_string", True)),
        ([step(0), step(1)], {}, ([9, 9], "aborted", True)),
        ([step(0)], {"sampling": {"temperature": 0.0}}, ([9], "aborted", False)),
        # One that was drawn again counts by its last line.
        ([step(0), step(1, 8), step(1, 7)], {}, ([9, 7], "aborted", True)),
        # What was drawn beyond the end is left out.
        ([step(0), step(1, 1), step(2)], {}, ([9, 1], "stop_token", True)),
    ],
)
def test_how_a_text_ended(tmp_path, written, steps, settings, outcome):
    written(tmp_path, *([ledger_step] for ledger_step in steps), **settings)
    ((_, ledger),) = journal_ledgers(tmp_path)
    assert (ledger.token_ids, ledger.finish_reason, ledger.certified) == outcome


def test_a_line_that_cannot_be_written_is_taken_back_and_others_follow(tmp_path, written):
    writer = written(tmp_path, [step(0)])
    whole = writer.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 10, hard))
    try:
        with ignored(signal.SIGXFSZ):
            for _ in range(2):
                with pytest.raises(OSError, match=r"disk is full|File too large"):
                    writer.steps([("a-12345678", step(1))])
                assert writer.has_failed and not writer.is_torn
                with pytest.raises(OSError, match=r"disk is full|File too large"):
                    writer.try_again()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert writer.path.read_bytes() == whole
    writer.try_again()
    assert not writer.has_failed
    writer.steps([("a-12345678", step(1))])
    ((_, ledger),) = journal_ledgers(tmp_path)
    assert ledger.certified is True and ledger.token_ids == [9, 9]


@contextmanager
def ignored(number: int) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    yield
    signal.signal(number, before)


def test_a_line_that_cannot_be_taken_back_costs_its_requests_the_certificate(
    tmp_path, written, monkeypatch
):
    writer = written(tmp_path, [step(0)])
    file, descriptor = writer._file, writer._file.fileno()
    half = SimpleNamespace(write=lambda line: file.write(line[:10]), fileno=lambda: descriptor)

    def broken(*_):
        raise OSError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_file", half)
        patch.setattr(journal_file.os, "ftruncate", broken)
        with pytest.raises(OSError, match="disk I/O error"):
            writer.steps([("a-12345678", step(1))])
    assert writer.is_torn
    writer.steps([("a-12345678", step(2))])
    ((_, ledger),) = journal_ledgers(tmp_path)
    assert ledger.certified is False
    assert ledger.token_ids == [9]


def test_a_reader_follows_the_writer_and_waits_for_whole_lines(tmp_path, written):
    writer, reader = written(tmp_path, [step(0)]), JournalReader(tmp_path)
    reader.refresh()
    with writer.path.open("ab") as file:
        line = json.dumps({"failed": "a-12345678", "error": "NaN"}).encode()
        file.write(line[:20])
        file.flush()
        reader.refresh()
        assert reader.find("a").error == ""
        file.write(line[20:] + b"\n")
    reader.refresh()
    record = reader.find("a")
    assert record.error == "NaN"
    assert record.answer([9])["certified"] is False
    reader.forget("a")
    assert reader.find("a") is None


def test_an_answer_counts_the_tokens_that_were_sent_and_refuses_others(tmp_path, written):
    steps = [step(0, spend=0.0)], [step(1, 8, spend=0.0)]
    written(tmp_path, *steps, debt=float("inf"), bound=0.0)
    reader = JournalReader(tmp_path)
    reader.refresh()
    record = reader.find("a-12345678")
    answer = record.answer([9])
    assert (answer["spent"], answer["debt"], answer["certified"]) == (0.0, "inf", True)
    for others in ([9, 7], [9, 8, 7]):
        with pytest.raises(JournalError):
            record.answer(others)


def test_the_command_writes_a_ledger_a_request_and_overwrites_none(tmp_path, written, capsys):
    written(tmp_path, [step(0)])
    words = ["ledgers", "--journal", str(tmp_path), "--out", str(tmp_path / "out")]
    for status in (0, 1):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == status
    assert Ledger.load(tmp_path / "out" / "a-12345678.jsonl").token_ids == [9]
    assert "1 certified" in capsys.readouterr().out


def test_every_request_of_a_journal_is_converted_and_a_server_remembers_some(tmp_path):
    writer = JournalWriter(tmp_path)
    for number in range(5):
        writer.open(f"r{number}", header(), has_stops=False)
        writer.steps([(f"r{number}", step(0))])
    writer.close()
    assert [name for name, _ in journal_ledgers(tmp_path)] == [f"r{n}" for n in range(5)]
    reader = JournalReader(tmp_path, num_kept=2)
    reader.refresh()
    assert [record.request_id for record in reader.records()] == ["r3", "r4"]


def test_a_file_is_named_by_an_id_within_the_folder(tmp_path, written, capsys):
    writer = written(tmp_path / "journal", [step(0)])
    for name in ("../out/of-12345678", ".._out/of-12345678"):
        writer.open(name, header(), has_stops=False)
        writer.steps([(name, step(0))])
    with pytest.raises(SystemExit):
        main(["ledgers", "--journal", str(tmp_path / "journal"), "--out", str(tmp_path / "made")])
    names = sorted(path.name for path in (tmp_path / "made").iterdir())
    assert len(names) == 3 and names[2] == "a-12345678.jsonl"  # ids that look alike have own files
    assert all(
        re.fullmatch(r"\.\._out_of-12345678-[0-9a-f]{16}\.jsonl", file_name)
        for file_name in names[:2]
    )


def test_a_server_reads_nothing_of_the_engines_before_it(tmp_path, written):
    written(tmp_path, [step(0)])
    reader = JournalReader(tmp_path, skips_written=True)
    written(tmp_path, [step(0)], [step(1)])
    reader.refresh()
    (record,) = reader.records()
    assert len(record.steps) == 2


def test_a_folder_without_journals_is_refused(tmp_path):
    with pytest.raises(LedgerError, match="no journal"):
        list(journal_ledgers(tmp_path))


def rotated(folder, num_texts=40, num_steps=6, **options):
    """A journal of many small files: texts of which one in four is broken off."""
    writer = JournalWriter(folder, max_bytes=3000, **options)
    for start in range(0, num_texts, 4):
        names = [f"r{start + n}" for n in range(4)]
        for name in names:
            writer.open(name, header(horizon=num_steps), has_stops=False)
        for place in range(num_steps):
            writer.steps([(n, step(place)) for n in names[: 4 if place < 3 else 3]])
        for name in names[:3]:
            writer.end(name)
    return writer


def test_a_full_file_is_continued_by_the_next_one(tmp_path):
    rotated(tmp_path).close()
    files = sorted(tmp_path.iterdir())
    assert len(files) > 5 and all(file.stat().st_size < 6000 for file in files)
    for file, following in pairwise(files):
        last = json.loads(file.read_text().splitlines()[-1])
        assert last == {"continued": following.name}
    by_id = dict(journal_ledgers(tmp_path))
    assert sorted(by_id) == sorted(f"r{n}" for n in range(40))
    for number in range(40):
        ledger = by_id[f"r{number}"]
        outcome = (len(ledger.steps), ledger.finish_reason)
        assert outcome == ((3, "aborted") if number % 4 == 3 else (6, "length"))


def test_a_journal_of_any_size_is_read_with_few_texts_in_memory(tmp_path):
    rotated(tmp_path, num_texts=200).close()
    reader = JournalReader(tmp_path)
    counts = [len(list(reader.records())) for _ in reader.ended_records()]
    assert len(counts) == 200 and max(counts) < 20


def test_a_step_of_a_text_that_was_taken_for_ended_is_no_silent_loss(tmp_path):
    writer = rotated(tmp_path, num_texts=40)
    writer.steps([("r3", step(3))])
    writer.close()
    with pytest.raises(JournalError, match="r3 has a step after a whole file without one"):
        list(JournalReader(tmp_path).ended_records())


def test_a_reader_opens_only_files_that_grow(tmp_path, monkeypatch):
    rotated(tmp_path).close()
    reader, opened, looked_at = JournalReader(tmp_path, skips_written=True), [], []

    def noted(path, mode):
        opened.append(Path(path).name)
        return open(path, mode)

    plain_stat = os.stat

    def noted_stat(path, **more):
        if str(path).startswith(str(tmp_path)):
            looked_at.append(Path(path).name)
        return plain_stat(path, **more)

    monkeypatch.setattr(journal_reader, "open", noted, raising=False)
    monkeypatch.setattr(os, "stat", noted_stat)
    writer = rotated(tmp_path)
    while reader.refresh():
        pass
    read = list(opened)
    assert len(read) == len(set(read)) > 5  # each once, and none of the files before
    assert len(list(reader.records())) == 40
    opened.clear()
    looked_at.clear()
    for place in range(20):
        writer.steps([("r3", step(3 + place))])
        reader.refresh()
    assert len(set(opened)) <= 3 and looked_at
    assert not {*opened, *looked_at} & set(read[:-1])
    writer.close()


def test_a_file_that_begins_within_one_tick_of_the_folders_clock_is_read(tmp_path, monkeypatch):
    reader, looks, plain = JournalReader(tmp_path), [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: (looks.append(folder), plain(folder))[1])
    reader.refresh()
    tick = tmp_path.stat().st_mtime_ns
    with closing(JournalWriter(tmp_path)) as writer:
        os.utime(tmp_path, ns=(tick, tick))  # as if it had begun at once
        writer.open("a", header(), has_stops=False)
        reader.refresh()
        assert reader.find("a") is not None
        os.utime(tmp_path, ns=(0, tick - 10**10))  # a folder that nothing has changed for a while
        reader.refresh()
        looks.clear()
        for place in range(3):
            writer.steps([("a", step(place))])
            assert reader.refresh()
    assert str(tmp_path) not in map(str, looks)


def test_a_file_that_was_moved_away_is_missed_by_nobody(tmp_path):
    writer, reader = rotated(tmp_path), JournalReader(tmp_path)
    reader.refresh()
    writer.path.unlink()
    reader.refresh()
    assert len(list(reader.records())) == 40
    writer.close()


def test_a_synced_journal_is_on_the_disk_with_each_line(tmp_path, monkeypatch):
    synced: list[str] = []
    plain = os.fsync

    def noted(descriptor):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith(str(tmp_path)):
            synced.append(name)
        plain(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    with closing(JournalWriter(tmp_path, is_synced=True)) as writer:
        assert synced == [str(writer.path), str(tmp_path)]
        writer.open("a", header(), has_stops=False)
        writer.steps([("a", step(0))])
        assert synced[2:] == [str(writer.path)] * 2
    synced.clear()
    rotated(tmp_path / "plain").close()
    assert synced == []
