"""The tokeniser's benchmark: the shards hold the very ids of the bare tokenizer."""

import gzip
import json

import pytest

from anchored.pretrain.tokens.documents import RecordFields
from anchored.pretrain.tokens.encoder import DocumentEncoder
from anchored.pretrain.tokens.input_files import local_files
from anchored.tools.bench.pretrain.tokenize import BASELINE, OURS, measure
from anchored.tools.cli import main

TEXTS = [f"the keeper of the lamp {number} wrote <|end|> salt" for number in range(600)]


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
    assert header.startswith("600 documents, 0.0 MB in 1 files, ") and "one thread" in header
    assert "ratio" in titles and "other ids" in titles
    assert [row[:20].strip() for row in rows] == [BASELINE, OURS]
    assert [row.split()[-1] for row in rows] == ["-", "0"]


def test_ids_that_differ_are_counted(tokenizer_folder, texts_file, monkeypatch):
    file = tokenizer_folder / "tokenizer.json"
    inputs = local_files([texts_file], revision="").files
    fields = RecordFields(text="body")
    tally = measure(inputs, fields, file)
    assert (tally.num_documents, tally.num_other_ids) == (600, 0)
    assert tally.num_bytes == sum(map(len, TEXTS))
    assert tally.baseline_seconds > 0 and tally.our_seconds > 0
    # 600 documents with one mark that is not the tokenizer's
    encode = DocumentEncoder.encode

    def marked_otherwise(encoder, documents, rules):
        for document in encode(encoder, documents, rules):
            if document.token_ids is not None:
                document.token_ids[0] += 1
            yield document

    monkeypatch.setattr(DocumentEncoder, "encode", marked_otherwise)
    assert measure(inputs, fields, file).num_other_ids == 600
