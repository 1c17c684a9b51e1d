"""Passages by BM25: scores by the definition, an index that is made once, and the command."""

import json
import math

import pytest
from command_line import run

from anchored.eval.retrieval import bm25
from anchored.eval.retrieval.bm25 import WordIndex

TEXTS = [
    "the keeper of the lamp wrote every wave into a ledger",
    "nine tides ago the harbour bell rang twice",
    "import math and area of a radius, a ledger of salt",
    "nobody had pulled the rope of the bell",
]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    records = [{"text": text} for text in TEXTS]
    records[1]["id"] = "tides"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_best_passage_and_its_score(corpus, tmp_path):
    index = WordIndex(corpus, tmp_path / "index")
    queries = ["harbour bell", "lamp ledger", "pulled rope"]
    found = index.search(queries)
    assert [own.id for own in found] == ["tides", 0, 3]
    assert [own.text for own in found] == [TEXTS[1], TEXTS[0], TEXTS[3]]
    # Lucene's: log(1 + (N - n + 0.5) / (n + 0.5)) of "pulled" and of "rope", each once in 5 words,
    # where texts have 6.
    weight = math.log(1 + 3.5 / 1.5) / (1 + 1.5 * (0.25 + 0.75 * 5 / 6))
    assert found[2].score == pytest.approx(2 * weight, rel=1e-5)
    assert index.search(["zzz"])[0].score == 0.0


def test_an_index_is_made_once_and_for_one_corpus(corpus, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    first = WordIndex(corpus, folder).search(["harbour"])
    with monkeypatch.context() as patched:
        patched.setattr(bm25.bm25s.BM25, "index", None)  # it would be called
        assert WordIndex(corpus, folder).search(["harbour"]) == first
    corpus.write_text(corpus.read_text() + '{"text": "one more line"}\n')
    with pytest.raises(ValueError, match="was made with another corpus"):
        WordIndex(corpus, folder)


def test_a_build_that_is_cut_off_leaves_nothing_that_passes_for_an_index(corpus, tmp_path):
    folder = tmp_path / "index"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bm25, "write_stamp", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            WordIndex(corpus, folder)
    assert not folder.exists()
    assert WordIndex(corpus, folder).search(["lamp"])[0].id == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no passages"),
        ('{"text": "a b"}\nnone\n', 'line 2 is no JSON object with a "text"'),
        ('{"text": 3}\n', 'line 1 is no JSON object with a "text"'),
    ],
)
def test_a_bad_corpus_is_named(tmp_path, text, message):
    (tmp_path / "bad.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        WordIndex(tmp_path / "bad.jsonl", tmp_path / "index")


def test_a_folder_of_another_kind_is_refused(corpus, tmp_path):
    with pytest.raises(ValueError, match="exists and is no index of passages"):
        WordIndex(corpus, tmp_path)


def test_the_command_adds_a_passage_to_every_prompt(capsys, corpus, tmp_path):
    prompts, output = tmp_path / "prompts.jsonl", tmp_path / "new" / "found.jsonl"
    prompts.write_text('{"prompt": "the harbour bell", "id": 7}\n{"prompt": "lamp", "seed": 3}\n')
    words = ["retrieve", "--corpus", str(corpus), "--prompt-file", str(prompts)]
    out, _ = run(capsys, *words)
    rows = [json.loads(line) for line in out.splitlines()]
    found = [(row["passage"], row["passage_id"]) for row in rows]
    assert found == [(TEXTS[1], "tides"), (TEXTS[0], 0)]
    assert rows[0]["id"] == 7 and rows[1]["seed"] == 3 and rows[0]["score"] > 0.0
    run(capsys, *words, "--output", str(output))
    assert [json.loads(line) for line in output.read_text().splitlines()] == rows
    _, err = run(capsys, *words, "--output", str(output), status=2)
    assert "give --overwrite" in err
