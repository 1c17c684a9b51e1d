"""The tokeniser's benchmark: the shards hold the very ids of the bare tokenizer."""

import gzip
import json

import numpy as np
import pytest
from tiny_models import train_tokenizer

from anchored.pretrain.document_encoder import BOS_TOKEN, EOS_TOKEN, DocumentEncoder
from anchored.pretrain.input_documents import RecordFields
from anchored.pretrain.input_files import local_files
from anchored.tools.bench_tokenize import BASELINE, OURS, BenchTokenizeConfig, encode, tokenize
from anchored.tools.cli import main

TEXTS = [f"the keeper of the lamp {number} wrote <|end|> salt" for number in range(600)]


@pytest.fixture
def tokenizer_folder(tmp_path):
    text = train_tokenizer().backend_tokenizer.to_str()
    text = text.replace("<|begin|>", BOS_TOKEN).replace("<|end|>", EOS_TOKEN)
    (tmp_path / "tokenizer.json").write_text(text)
    return tmp_path


@pytest.fixture
def texts_file(tmp_path):
    lines = [json.dumps({"body": text}) for text in ["", *TEXTS]]
    (tmp_path / "texts.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path / "texts.jsonl.gz"


def test_the_program_prints_a_table_without_wrong_tokens(capsys, tokenizer_folder, texts_file):
    words = ["--input", str(texts_file), "--tokenizer", str(tokenizer_folder)]
    with pytest.raises(SystemExit) as status:
        main(["bench", "tokenize", *words, "--text-field", "body", "--runs", "1"])
    assert status.value.code == 0
    header, titles, *rows = capsys.readouterr().out.splitlines()
    assert header.startswith("600 documents, 0.0 MB, ") and "one thread" in header
    assert "ratio" in titles and "other ids" in titles
    assert [row[:20].strip() for row in rows] == [BASELINE, OURS]
    assert [row.split()[-1] for row in rows] == ["-", "0"]


def test_both_ways_give_every_document_between_its_marks(tokenizer_folder, texts_file):
    file = tokenizer_folder / "tokenizer.json"
    seconds, baseline = encode(TEXTS, file)
    assert seconds > 0
    fields = RecordFields(text="body", fixed_licence="any")
    _, ours = tokenize(local_files([texts_file], revision=""), fields, file)
    assert np.array_equal(baseline, ours)
    encoder = DocumentEncoder(file)
    for mark in (encoder.bos_id, encoder.eos_id):
        assert (baseline == mark).sum() == 600


def test_no_runs_are_refused():
    with pytest.raises(ValueError, match="runs must be >= 1, got 0"):
        BenchTokenizeConfig(input=(), tokenizer="t", runs=0)
