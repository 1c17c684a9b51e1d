"""Passages by words and by embeddings: their scores, indexes that are made once, the command."""

import json
import math
import shutil

import numpy as np
import pytest
from tiny_models import tiny_llama, train_tokenizer

from anchored.eval.experiments.plan import passage_index
from anchored.eval.experiments.sweep import Method, Sweep
from anchored.eval.retrieval import passages
from anchored.eval.retrieval.passages import DenseIndex, WordIndex

TEXTS = [
    "the keeper of the lamp wrote every wave into a ledger",
    "nine tides ago the harbour bell rang twice",
    "import math and area of a radius, a ledger of salt",
    "nobody had pulled the rope of the bell",
]
EMBEDDED = [f"{first} {second}" for first in ("salt", "rain", "bell") for second in "abcdefg"]
IDS = [("tides", 1), (0, 0), (3, 3)]
QUERIES = ["a bell", "rain and salt", "the keeper of the lamp"]


def corpus_of(folder, records):
    path = folder / "corpus.jsonl"
    lines = "".join(json.dumps(record) + "\n" for record in records)
    path.write_text(lines, encoding="utf-8-sig")  # some editors put a byte order mark in front
    return path


@pytest.fixture
def corpus(tmp_path):
    records = [{"text": text} for text in TEXTS]
    records[1]["id"] = "tides"
    return corpus_of(tmp_path, records)


@pytest.fixture
def embedded(tmp_path, monkeypatch):
    """A corpus whose embeddings take three parts."""
    monkeypatch.setattr(passages, "PART_SIZE", 8)
    return corpus_of(tmp_path, [{"text": text} for text in EMBEDDED])


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A real encoder of random weights, with last-token pooling as the paper's has it."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    pytest.importorskip("faiss")
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


def test_the_best_passage_and_its_score(corpus, tmp_path):
    index = WordIndex(corpus, tmp_path / "index")
    hits = index.search(["harbour bell", "lamp ledger", "pulled rope"])
    assert [(hit.id, hit.text) for hit in hits] == [(n, TEXTS[i]) for n, i in IDS]
    # Lucene's: log(1 + (N - n + 0.5) / (n + 0.5)) of "pulled" and of "rope", each once in 5 words,
    # where texts have 6.
    weight = math.log(1 + 3.5 / 1.5) / (1 + 1.5 * (0.25 + 0.75 * 5 / 6))
    assert hits[2].score == pytest.approx(2 * weight, rel=1e-5)
    assert index.search(["zzz", "the of"]) == [None, None]
    # Texts without spaces are searched by pairs of letters.
    corpus = corpus_of(tmp_path, [{"text": "他去了北京的灯塔。"}, {"text": "我家的猫很大。"}])
    hits = WordIndex(corpus, tmp_path / "pairs").search(["北京的灯塔", "大猫很大", "好的"])
    assert [hit and hit.id for hit in hits] == [0, 1, None]


def test_an_index_is_made_once_whole_and_for_one_corpus(corpus, tmp_path, monkeypatch):
    folder = tmp_path / "index"
    with monkeypatch.context() as patched:
        patched.setattr(passages, "write_durably", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            WordIndex(corpus, folder)
    assert not folder.exists()
    for line in ('{"text": 3}', "[" * 200_000):
        (tmp_path / "bad.jsonl").write_text(line + "\n")
        with pytest.raises(ValueError, match='line 1 is no JSON object with a "text"'):
            WordIndex(tmp_path / "bad.jsonl", folder)
    with pytest.raises(ValueError, match="exists and is no index of passages"):
        WordIndex(corpus, tmp_path)
    first = WordIndex(corpus, folder).search(["harbour"])
    with monkeypatch.context() as patched:
        patched.setattr("bm25s.BM25.index", None)  # it would be called
        assert WordIndex(corpus, folder).search(["harbour"]) == first
    corpus.write_text(corpus.read_text() + '{"text": "one more line"}\n')
    with pytest.raises(ValueError, match="was made with another corpus"):
        WordIndex(corpus, folder)


def test_the_nearest_of_all_parts_is_found_though_making_them_was_interrupted(
    embedded, encoder, tmp_path, monkeypatch
):
    save, calls = np.save, []

    def counted(file, vectors):
        calls.append(len(vectors))
        if len(calls) == 2:
            raise KeyboardInterrupt
        save(file, vectors)

    monkeypatch.setattr(passages.np, "save", counted)
    with pytest.raises(KeyboardInterrupt):
        DenseIndex(embedded, tmp_path / "index", encoder, instruction="Query: ")
    index = DenseIndex(embedded, tmp_path / "index", encoder, instruction="Query: ")
    assert calls == [8, 8, 8, 5]
    sentence_transformers = pytest.importorskip("sentence_transformers")
    model = sentence_transformers.SentenceTransformer(str(encoder), device="cpu")
    vectors = model.encode(EMBEDDED, show_progress_bar=False).astype(np.float64)
    asked = model.encode([f"Query: {q}" for q in QUERIES], show_progress_bar=False)
    vectors, asked = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (vectors, asked))
    cosines = asked @ vectors.T
    hits = index.search(QUERIES)
    assert [passage.id for passage in hits] == cosines.argmax(1).tolist()
    assert [passage.text for passage in hits] == [EMBEDDED[passage.id] for passage in hits]
    assert [passage.score for passage in hits] == pytest.approx(cosines.max(1).tolist(), abs=1e-5)


def test_an_index_is_of_its_encoder_wherever_that_is_moved(
    embedded, encoder, tmp_path, monkeypatch
):
    DenseIndex(embedded, tmp_path / "index", encoder)
    copy = shutil.copytree(encoder, tmp_path / "copy")
    monkeypatch.setattr(passages.np, "save", lambda *_: pytest.fail("computed again"))
    DenseIndex(embedded, tmp_path / "index", copy)
    pooling = next(copy.glob("*_Pooling/config.json"))
    pooling.write_text(pooling.read_text().replace("lasttoken", "mean"))
    for other in (copy, "someone/else"):
        with pytest.raises(ValueError, match="was made with another encoder"):
            DenseIndex(embedded, tmp_path / "index", other)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match="encoder nosuch/encoder cannot be loaded: "):
        DenseIndex(embedded, tmp_path / "new", "nosuch/encoder")
    assert not (tmp_path / "new").exists()


def test_a_sweep_finds_its_passages_by_an_encoder(embedded, encoder, tmp_path):
    method = Method(rule="rcad", label="RCAD")
    texts = {"prompts": "prompts.jsonl", "passages": str(embedded), "encoder": str(encoder)}
    sweep = Sweep(safe="a", risky="b", methods=(method,), **texts)
    hits = passage_index(sweep, tmp_path / "run").search(QUERIES)
    assert hits == DenseIndex(embedded, tmp_path / "index", encoder).search(QUERIES)
