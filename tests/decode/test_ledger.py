"""Ledgers survive a round trip, show every change, and are replayed against the models."""

import dataclasses
import json

import pytest

from anchored import (
    RCAD,
    Anchored,
    Decoder,
    Ledger,
    LedgerError,
    verify,
    with_divergences,
)

PROMPT = "the keeper of the lamp wrote"


@pytest.fixture(scope="module")
def ledger(pair) -> Ledger:
    (result,) = Decoder(pair, Anchored(k=1.0)).generate(PROMPT, max_new_tokens=20, seed=7)
    return result.ledger


@pytest.fixture
def path(ledger, tmp_path):
    ledger.save(tmp_path / "ledger.jsonl")
    return tmp_path / "ledger.jsonl"


@pytest.mark.parametrize(
    "text", ["inf", "-inf", "nan", "Infinity", "1e999", "null", "\u2028\x1c\n"]
)
def test_a_text_that_reads_like_a_figure_stays_a_text(pair, tmp_path, text):
    decoder = Decoder(pair, RCAD())
    (result,) = decoder.generate(text, max_new_tokens=2, passages=text)
    named = {"swapped": [text], "left_out": []}
    header = dataclasses.replace(result.ledger.header, words=named)
    ledger = dataclasses.replace(result.ledger, header=header)
    ledger.save(tmp_path / "ledger.jsonl")
    assert Ledger.load(tmp_path / "ledger.jsonl") == ledger
    assert ledger.header.passage == text
    assert verify(result.ledger, pair)


def changed_figure(lines: list[str]) -> list[str]:
    step = json.loads(lines[3])
    return [*lines[:3], json.dumps({**step, "spend": step["spend"] / 2 + 1}), *lines[4:]]


FILES = {
    "a changed figure": (changed_figure, "a figure was changed"),
    "a changed total": (
        lambda lines: [*lines[:-1], lines[-1].replace('"length"', '"stop_token"')],
        "a figure was changed",
    ),
    "swapped lines": (
        lambda lines: [*lines[:4], lines[5], lines[4], *lines[6:]],
        "line 5 holds step 4, expected 3: lines were reordered",
    ),
    "cut": (lambda lines: lines[:10], "cut off after 9 steps: the footer is missing"),
    "cut in a line": (
        lambda lines: [*lines[:-1], lines[-1][:-40]],
        "line 22 is cut off or not JSON",
    ),
    "empty": (b"", "line 1 is not the header"),
    "other": (b'{"a": 1}', "line 1 is not the header"),
    "blank": (b"\n\n", "line 1 is cut off or not JSON"),
    "list": (b"[1, 2]\n", "line 1 is not a JSON object"),
    "binary": (b"\xff\xfe\x00", "it is not UTF-8 text"),
    "header": (b'{"schema": "anchored-ledger/1", "sha256": ""}\n', "cut off after the header"),
    "deep": (b"[" * 100_000, "line 1 is cut off or not JSON"),
    "digits": (b'{"schema": ' + b"9" * 5000 + b"}", "line 1 is cut off or not JSON"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_whole_ledger_is_refused(path, pair, name):
    content, message = FILES[name]
    if callable(content):
        content = "\n".join([*content(path.read_text().splitlines()), ""]).encode()
    path.write_bytes(content)
    with pytest.raises(LedgerError, match=message):
        verify(path, pair)


def test_a_folder_is_refused(pair, tmp_path):
    with pytest.raises(LedgerError, match="is a directory, not a ledger"):
        verify(tmp_path, pair)


def test_divergences_of_a_ledger_that_is_inconsistent_are_refused(ledger, pair):
    header = dataclasses.replace(ledger.header, prompt_token_ids=[999])
    with pytest.raises(LedgerError, match="prompt: token ids must be in"):
        with_divergences(dataclasses.replace(ledger, header=header), pair)
