"""A blocklist of a whole corpus: Bloom filters that miss nothing and err as rarely as they say."""

import json
import random
import sys
from dataclasses import replace

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import TEXT, tiny_llama, train_tokenizer

from anchored import Decoder, Ledger, MemFree, ModelPair, RiskyOnly, verify
from anchored.decode.rules import memfree
from anchored.decode.rules.memfree import CorpusNGrams, PassageNGrams

pytest.importorskip("rbloom")
RATE = 1e-3


def drawn_texts(num_texts: int, vocab_size: int) -> list[list[int]]:
    source = random.Random(7)
    lengths = (source.randrange(0, 200) for _ in range(num_texts))
    return [[source.randrange(vocab_size) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_every_n_gram_is_found_and_others_as_rarely_as_asked(n):
    vocab_size = 1000
    texts = drawn_texts(60, vocab_size)
    exact, filters = PassageNGrams(texts, n), CorpusNGrams(texts, n, RATE)
    num_tests = num_wrong = 0
    for text in texts:
        for end in range(n - 1, len(text), 40):
            past = text[:end]
            assert filters.knows(past) and exact.knows(past)
            expected = set(exact.blocked(past, range(vocab_size)))
            found = set(filters.blocked(past, range(vocab_size)))
            assert text[end] in expected <= found
            num_tests += vocab_size - len(expected)
            num_wrong += len(found - expected)
    # 5 standard deviations of a count above its mean.
    assert num_wrong <= RATE * num_tests + 5 * (RATE * num_tests) ** 0.5
    unknown = [[vocab_size + place] * n for place in range(20_000)]
    if n > 1:
        assert sum(map(filters.knows, unknown)) <= RATE * len(unknown) + 5 * (RATE * 20_000) ** 0.5


@pytest.fixture(scope="module")
def pairs() -> dict[str, ModelPair]:
    token = ModelPair(tiny_llama(3), tiny_llama(4), train_tokenizer(320))
    return {"token": token, "byte": tiny_byte_pair()}


def test_an_n_gram_has_four_bytes_a_token(pairs):
    rule = Decoder(pairs["byte"], MemFree(n=1, passages=["0123"]), level="byte").rule
    anything = torch.zeros(257)
    assert rule.blocked(b"012", anything) == [*b"3"] and not rule.blocked(b"12", anything)


def test_a_corpus_needs_a_library_that_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rbloom", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'anchored\[retrieval\]'"):
        CorpusNGrams([[1, 2, 3]], 2, 1e-3)


PROMPT = "the keeper of"


@pytest.fixture
def corpus(pairs, level, tmp_path):
    """What the risky model writes by itself, and more."""
    copied = Decoder(pairs[level], RiskyOnly(), level=level).generate(
        [PROMPT] * 4, max_new_tokens=6, temperature=0.4
    )
    texts = [*TEXT, *(own.text for own in copied)]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return file, texts


@pytest.mark.parametrize(("level", "rate"), [("token", 1e-12), ("token", 0.0), ("byte", 1e-12)])
def test_a_corpus_blocks_what_its_texts_block(pairs, level, rate, corpus, tmp_path, monkeypatch):
    file, texts = corpus
    num_read, records = [], memfree.records
    monkeypatch.setattr(memfree, "records", lambda path: num_read.append(path) or records(path))
    asked = {"max_new_tokens": 6, "temperature": 0.4}
    rule = MemFree(n=2, corpus=str(file), false_positives=rate)
    by_corpus = Decoder(pairs[level], rule, level=level).generate([PROMPT] * 2, **asked)
    exact = Decoder(pairs[level], MemFree(n=2, passages=texts), level=level)
    by_texts = exact.generate([PROMPT] * 2, **asked)
    risky = Decoder(pairs[level], RiskyOnly(), level=level).generate([PROMPT] * 2, **asked)
    assert [own.token_ids for own in by_corpus] == [own.token_ids for own in by_texts]
    assert [own.token_ids for own in by_corpus] != [own.token_ids for own in risky]
    by_corpus[0].ledger.save(tmp_path / "ledger.jsonl")
    loaded = Ledger.load(tmp_path / "ledger.jsonl")
    report = verify(loaded, pairs[level])
    assert report, report.failures
    assert len(num_read) == 1  # for the decoder, and for what verify looks at
    settings = loaded.header.rule_settings
    assert settings["false_positives"] == rate and len(settings["corpus_sha256"]) == 64


@pytest.mark.parametrize("level", ["token"])
def test_another_corpus_is_refused_by_verify(pairs, level, corpus):
    file, _ = corpus
    rule = MemFree(n=2, corpus=str(file), passages=TEXT)
    (result,) = Decoder(pairs[level], rule).generate([PROMPT], max_new_tokens=4)
    assert verify(result.ledger, pairs[level])
    file.write_text(json.dumps({"text": "other"}))
    assert "is not the corpus that was recorded" in verify(result.ledger, pairs[level]).failures[0]
    file.write_text("no JSON")
    header = result.ledger.header
    settings = {**header.rule_settings, "corpus_sha256": MemFree(corpus=str(file)).corpus_sha256}
    forged = replace(result.ledger, header=replace(header, rule_settings=settings))
    assert "line 1 is no JSON object" in verify(forged, pairs[level]).failures[0]
    file.unlink()
    assert "there is none at" in verify(result.ledger, pairs[level]).failures[0]
