"""Rows join and leave a full batch, and the risky model rests while nothing may be spent."""

import math

import pytest
from tiny_models import tiny_llama, word_prompts

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.engine.paired_batch import PairedBatch

NUM_PROMPTS = 6
RULE = Anchored(k=0.4)


def generate(pair, rule, batch_size, **options):
    decoder = Decoder(pair, rule, batch_size=batch_size)
    options = {"max_new_tokens": 12, "seed": range(NUM_PROMPTS), **options}
    return decoder.generate(word_prompts(NUM_PROMPTS, 8), **options)


@pytest.mark.parametrize("batch_size", [1, 16])
def test_forwards_saved_are_those_of_the_steps_that_the_debt_pays_for(pair, batch_size):
    """The verifier runs both models at every step, whatever may be spent."""
    saved = []
    for result in generate(pair, Anchored(k=0.4, divergence="max"), batch_size, temperature=1.0):
        ledger, num_tokens = result.ledger, len(result.token_ids)
        # Leading steps without an allowance; the prompt's forward, which the debt needs, already
        # tells the first distribution.
        num_cold = math.floor(ledger.header.debt / ledger.header.k)
        expected = max(0, min(num_cold, num_tokens) - 1)
        assert ledger.skipped_risky == expected
        assert ledger.risky_forwards == num_tokens - expected
        assert ledger.safe_forwards == num_tokens
        assert verify(ledger, pair).is_ok
        saved.append(expected)
    assert len(set(saved)) > 2 and max(saved) > 4


def test_models_that_decode_in_whole_batches_rest_only_together(tokenizer, pair):
    whole = ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)
    whole.row_attention.update(safe=None, risky=None)
    for batch_size in (1, 4):
        expected, actual = generate(pair, RULE, batch_size), generate(whole, RULE, batch_size)
        assert [a.token_ids for a in actual] == [e.token_ids for e in expected]
        skipped = [result.ledger.skipped_risky for result in actual]
        alone = [result.ledger.skipped_risky for result in expected]
        assert all(ours <= theirs for ours, theirs in zip(skipped, alone, strict=True))
        assert sum(skipped) > 0 and (batch_size > 1 or skipped == alone)


def test_the_batch_stays_full_while_requests_wait(pair, monkeypatch):
    occupied: list[int] = []
    step = PairedBatch.step
    monkeypatch.setattr(
        PairedBatch, "step", lambda batch: (occupied.append(len(batch.active_rows)), step(batch))[1]
    )
    decoder = Decoder(pair, Anchored(k=1.0, debt="none"), batch_size=4)
    results = decoder.generate(word_prompts(12), max_new_tokens=[9, 20, 5, 13] * 3)
    lengths = [len(result.token_ids) for result in results]
    assert len(set(lengths)) > 3 and set(occupied[: -max(lengths)]) == {4}
    assert sum(occupied) == sum(lengths)
