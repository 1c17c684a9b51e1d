"""Rows join and leave a full batch; what a request gets does not depend on the others."""

import random

import pytest
from tiny_models import word_prompts

from anchored import Anchored, Decoder
from anchored.decode.engine.paired_batch import PairedBatch


def tokens_of(results) -> list[list[int]]:
    return [result.token_ids for result in results]


@pytest.mark.parametrize("batch_size", [3, pytest.param(16, marks=pytest.mark.slow)])
def test_a_full_batch_gives_every_request_the_tokens_it_gets_alone(ending_pair, batch_size):
    texts, seeds = word_prompts(16), list(range(16))
    settings = {"max_new_tokens": 20, "temperature": 1.0}
    alone = Decoder(ending_pair, Anchored(k=1.0), batch_size=1)
    expected = alone.generate(texts, seed=seeds, **settings)
    assert len({len(result.token_ids) for result in expected}) > 5
    decoder = Decoder(ending_pair, Anchored(k=1.0), batch_size=batch_size)
    together = decoder.generate(texts, seed=seeds, **settings)
    assert tokens_of(together) == tokens_of(expected)
    assert [result.text for result in together] == [result.text for result in expected]
    order = random.Random(0).sample(range(16), 16)
    shuffled = decoder.generate([texts[i] for i in order], seed=order, **settings)
    assert tokens_of(shuffled) == [expected[i].token_ids for i in order]
    assert [r.ledger.safe_forwards for r in together] == [len(r.token_ids) for r in together]


def test_the_batch_stays_full_while_requests_wait(ending_pair, monkeypatch):
    occupied: list[int] = []
    step = PairedBatch.step
    monkeypatch.setattr(
        PairedBatch, "step", lambda batch: (occupied.append(len(batch.active_rows)), step(batch))[1]
    )
    decoder = Decoder(ending_pair, Anchored(k=1.0, debt="none"), batch_size=4)
    results = decoder.generate(word_prompts(12), seed=range(12), max_new_tokens=20, temperature=1.0)
    lengths = [len(result.token_ids) for result in results]
    assert len(lengths) == 12 and set(occupied[: -max(lengths)]) == {4}
    assert sum(occupied) == sum(lengths)


def test_one_request_that_is_too_long_fails_alone_and_is_reported(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    texts = ["salt", "the keeper " * 80, "import math"]
    first, refused, last = decoder.generate(texts, max_new_tokens=5)
    assert "request 1: the prompt has" in refused.error
    assert "exceeds the pair's context of 128" in refused.error
    assert refused.finish_reason == "error" and not refused.ledger.certified
    (alone,) = decoder.generate(["import math"], max_new_tokens=5)
    assert not first.error and last.token_ids == alone.token_ids
    scores = decoder.score(texts, [" x", " y", " z"])
    assert [bool(score.error) for score in scores] == [False, True, False]
    assert "exceeds the pair's context of 128" in scores[1].error


def test_the_bar_shows_tokens_per_second(pair, capfd):
    Decoder(pair, Anchored(k=1.0)).generate(word_prompts(3), max_new_tokens=4, progress="pair")
    shown = capfd.readouterr().err
    assert "pair" in shown and "3/3" in shown and "tokens/s" in shown
