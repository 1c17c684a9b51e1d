"""Journals: what is written, what a killed writer leaves, and ledgers made of it."""

import json
import re
from contextlib import ExitStack, closing

import pytest

from anchored.decode.ledger import Ledger, LedgerError, LedgerHeader, LedgerStep
from anchored.decode.vllm.journal import (
    JournalError,
    JournalReader,
    JournalWriter,
    journal_ledgers,
)
from anchored.tools.cli import main


def header(**changes) -> LedgerHeader:
    own = {
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
    return LedgerHeader(**{**own, **changes})


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
                writer.steps([("a-12345678", own) for own in line])
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
    ("steps", "settings", "told"),
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
def test_how_a_text_ended(tmp_path, written, steps, settings, told):
    written(tmp_path, *([own] for own in steps), **settings)
    ((_, ledger),) = journal_ledgers(tmp_path)
    assert (ledger.token_ids, ledger.finish_reason, ledger.certified) == told


def test_a_line_that_a_full_disk_tore_costs_its_requests_the_certificate(tmp_path, written):
    writer = written(tmp_path, [step(0)])

    class Full:
        def write(self, content):
            return file.write(content[:10])

    file, writer._file = writer._file, Full()
    with pytest.raises(OSError, match="disk is full"):
        writer.steps([("a-12345678", step(1))])
    writer._file = file
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
    written(tmp_path, [step(0)], [step(1, 8)], debt=float("inf"), bound=0.0)
    reader = JournalReader(tmp_path)
    reader.refresh()
    record = reader.find("a-12345678")
    answer = record.answer([9])
    assert (answer["spent"], answer["debt"], answer["certified"]) == (0.5, "inf", True)
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
    assert all(re.fullmatch(r"\.\._out_of-12345678-[0-9a-f]{16}\.jsonl", own) for own in names[:2])


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
