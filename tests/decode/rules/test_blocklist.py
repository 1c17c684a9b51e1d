"""A blocklist of a file of texts: what it blocks, and that verify finds the same file."""

import json
from dataclasses import replace

import pytest
import torch
from byte_pairs import tiny_byte_pair
from tiny_models import TEXT, tiny_llama, train_tokenizer

from anchored import Decoder, Ledger, MemFree, ModelPair, RiskyOnly, SafeOnly, verify
from anchored.decode.rules import memfree
from anchored.decode.rules.rule import Past, StepInputs


@pytest.fixture(scope="module")
def pairs() -> dict[str, ModelPair]:
    token = ModelPair(tiny_llama(3), tiny_llama(4), train_tokenizer(320))
    return {"token": token, "byte": tiny_byte_pair()}


def test_an_n_gram_has_four_bytes_a_token(pairs):
    level = Decoder(pairs["byte"], SafeOnly(), level="byte").level
    rule = MemFree(n=1, passages=["0123"], compared=False).open(level)
    inputs = StepInputs(
        logits={"risky": torch.zeros(2, 257)},
        warp=lambda logits: logits,
        budget=torch.zeros(2, dtype=torch.float64),
        uniform=None,
        past=Past([b"012", b"12"], {}),
    )
    log_probs = rule.next_token(inputs).log_probs()
    assert (log_probs == -torch.inf).nonzero().tolist() == [[0, ord("3")]]


PROMPT = "the keeper of"


@pytest.fixture
def corpus(pairs, level, tmp_path):
    """What the risky model writes by itself, and more."""
    copied = Decoder(pairs[level], RiskyOnly(), level=level).generate(
        [PROMPT] * 4, max_new_tokens=6, temperature=0.4
    )
    texts = [*TEXT, *(result.text for result in copied)]
    file = tmp_path / "corpus.jsonl"
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return file, texts


@pytest.mark.parametrize("level", ["token", "byte"])
def test_a_corpus_blocks_what_its_texts_block(pairs, level, corpus, tmp_path, monkeypatch):
    file, texts = corpus
    num_read, records = [], memfree.records
    monkeypatch.setattr(memfree, "records", lambda path: num_read.append(path) or records(path))
    asked = {"max_new_tokens": 6, "temperature": 0.4}
    rule = MemFree(n=2, corpus=str(file))
    by_corpus = Decoder(pairs[level], rule, level=level).generate([PROMPT] * 2, **asked)
    exact = Decoder(pairs[level], MemFree(n=2, passages=texts), level=level)
    by_texts = exact.generate([PROMPT] * 2, **asked)
    risky = Decoder(pairs[level], RiskyOnly(), level=level).generate([PROMPT] * 2, **asked)
    assert [result.token_ids for result in by_corpus] == [result.token_ids for result in by_texts]
    assert [result.token_ids for result in by_corpus] != [result.token_ids for result in risky]
    by_corpus[0].ledger.save(tmp_path / "ledger.jsonl")
    loaded = Ledger.load(tmp_path / "ledger.jsonl")
    report = verify(loaded, pairs[level])
    assert report, report.failures
    assert len(num_read) == 1  # for the decoder, and for what verify looks at
    assert len(loaded.header.rule_settings["corpus_sha256"]) == 64


@pytest.mark.parametrize("level", ["token"])
def test_another_corpus_is_refused_by_verify(pairs, level, corpus):
    file, _ = corpus
    rule = MemFree(n=2, corpus=file, passages=TEXT)
    assert rule == MemFree(n=2, corpus=str(file), passages=TEXT)
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
