"""Passages by embeddings: a real encoder of random weights, made here, and its cosines."""

import importlib
import json

import numpy as np
import pytest
from command_line import run
from tiny_models import tiny_llama, train_tokenizer

from anchored.eval.experiments import sweep_run
from anchored.eval.experiments.sweep import Method, Sweep

sentence_transformers = pytest.importorskip("sentence_transformers")
pytest.importorskip("faiss")
dense = importlib.import_module("anchored.eval.retrieval.dense")

TEXTS = [f"{first} {second}" for first in ("salt", "rain", "bell") for second in "abcdefg"]
QUERIES = ["a bell", "rain and salt", "the keeper of the lamp"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """Last-token pooling, as the paper's encoder has it."""
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    plain = tmp_path_factory.mktemp("plain")
    tiny_llama(3).float().model.save_pretrained(plain)
    tokenizer = train_tokenizer(320)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(plain)
    words = Transformer(str(plain), max_seq_length=64)
    pooling = Pooling(words.get_embedding_dimension(), pooling_mode="lasttoken")
    folder = tmp_path_factory.mktemp("encoder")
    sentence_transformers.SentenceTransformer(modules=[words, pooling], device="cpu").save(
        str(folder)
    )
    return folder


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return path


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(dense, "PART_SIZE", 8)


def test_the_nearest_of_all_parts_is_found(corpus, encoder, tmp_path):
    index = dense.DenseIndex(corpus, tmp_path / "index", encoder, instruction="Query: ")
    assert len(list((tmp_path / "index").glob("part-*.npy"))) == 3
    model = sentence_transformers.SentenceTransformer(str(encoder), device="cpu")
    own = model.encode(TEXTS, show_progress_bar=False).astype(np.float64)
    asked = model.encode([f"Query: {q}" for q in QUERIES], show_progress_bar=False)
    own, asked = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (own, asked))
    cosines = asked @ own.T
    found = index.search(QUERIES)
    assert [passage.id for passage in found] == cosines.argmax(1).tolist()
    assert [passage.text for passage in found] == [TEXTS[passage.id] for passage in found]
    assert [passage.score for passage in found] == pytest.approx(cosines.max(1).tolist(), abs=1e-5)


def test_an_interrupted_index_goes_on_where_it_was(corpus, encoder, tmp_path, monkeypatch):
    whole = dense.DenseIndex(corpus, tmp_path / "whole", encoder).search(QUERIES)
    embedded, calls = dense.DenseIndex._embedded, []

    def counted(self, texts, progress):
        calls.append(len(texts))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return embedded(self, texts, progress)

    monkeypatch.setattr(dense.DenseIndex, "_embedded", counted)
    with pytest.raises(KeyboardInterrupt):
        dense.DenseIndex(corpus, tmp_path / "index", encoder)
    resumed = dense.DenseIndex(corpus, tmp_path / "index", encoder)
    assert calls == [8, 8, 8, 5]
    assert resumed.search(QUERIES) == whole


def test_an_index_of_another_encoder_is_refused(corpus, encoder, tmp_path):
    dense.DenseIndex(corpus, tmp_path / "index", encoder)
    with pytest.raises(ValueError, match="was made with another encoder"):
        dense.DenseIndex(corpus, tmp_path / "index", "someone/else")


def test_the_command_takes_an_encoder(capsys, corpus, encoder, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": "a bell"}) + "\n")
    words = ["retrieve", "--corpus", str(corpus), "--prompt-file", str(prompts)]
    out, _ = run(capsys, *words, "--encoder", str(encoder))
    row = json.loads(out)
    assert row["passage"] in TEXTS and -1.0 <= row["score"] <= 1.0
    _, err = run(capsys, *words, "--instruction", "Find: ", status=2)
    assert "--instruction needs an --encoder" in err


def test_a_sweep_finds_its_passages_by_an_encoder(corpus, encoder, tmp_path, monkeypatch):
    method = Method(rule="rcad", label="RCAD")
    texts = {"prompts": "prompts.jsonl", "passages": str(corpus), "encoder": str(encoder)}
    sweep = Sweep(safe="a", risky="b", methods=(method,), **texts)
    found = sweep_run._index(sweep, tmp_path / "run").search(QUERIES)
    assert found == dense.DenseIndex(corpus, tmp_path / "index", encoder).search(QUERIES)
    monkeypatch.setattr(dense.np, "save", lambda *_: pytest.fail("computed again"))
    assert sweep_run._index(sweep, tmp_path / "run").search(QUERIES) == found
