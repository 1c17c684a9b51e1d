"""Requests without an allowance need no risky model: the same ledgers, fewer forwards."""

import math

import pytest
from plain_forward import assert_same
from tiny_models import tiny_llama, word_prompts

from anchored import Anchored, Decoder, ModelPair, SafeOnly, verify
from anchored.decode import decoder
from anchored.decode.engine.paired_batch import PairedBatch

NUM_PROMPTS = 6
NUM_TOKENS = 12


class RestlessBatch(PairedBatch):
    """Runs both models at every step, whatever may be spent."""

    def _read(self, rows):
        super()._read(dict.fromkeys(rows, rows["safe"]))


def generate(pair, rule, batch_size, **settings):
    decoder = Decoder(pair, rule, batch_size=batch_size)
    settings = {"max_new_tokens": NUM_TOKENS, "seed": list(range(NUM_PROMPTS)), **settings}
    return decoder.generate(word_prompts(NUM_PROMPTS, 8), **settings)


def cold_steps(ledger) -> int:
    """Leading steps of the adaptive budget without an allowance."""
    return math.floor(ledger.header.debt / ledger.header.k) if ledger.header.k else NUM_TOKENS


@pytest.mark.parametrize("rule", [Anchored(k=0.4), Anchored(k=1.0, budget="global"), SafeOnly()])
def test_resting_changes_no_token_and_no_figure(pair, rule, monkeypatch):
    rested = generate(pair, rule, 5)
    monkeypatch.setattr(decoder, "PairedBatch", RestlessBatch)
    restless = generate(pair, rule, 5)
    assert all(result.ledger.skipped_risky == 0 for result in restless)
    assert_same(restless, rested)
    assert verify(rested[0].ledger, pair).is_ok


@pytest.mark.parametrize("batch_size", [1, 16])
def test_forwards_saved_are_those_of_the_steps_that_the_debt_pays_for(pair, batch_size):
    results = generate(pair, Anchored(k=0.4, divergence="max"), batch_size, temperature=1.0)
    saved = []
    for result in results:
        ledger, num_tokens = result.ledger, len(result.token_ids)
        # The prompt's forward, which the debt needs, already tells the first distribution.
        expected = max(0, min(cold_steps(ledger), num_tokens) - 1)
        assert ledger.skipped_risky == expected
        assert ledger.risky_forwards == num_tokens - expected
        assert ledger.safe_forwards == num_tokens
        saved.append(expected)
    assert len(set(saved)) > 2 and max(saved) > 4


def test_models_that_decode_in_whole_batches_rest_only_together(tokenizer, pair, monkeypatch):
    whole = ModelPair(tiny_llama(1), tiny_llama(2, layers=3), tokenizer)
    whole.row_attention.update(safe=None, risky=None)
    rule = Anchored(k=0.4)
    for batch_size in (1, 4):
        expected, actual = generate(pair, rule, batch_size), generate(whole, rule, batch_size)
        assert [a.token_ids for a in actual] == [e.token_ids for e in expected]
        skipped = [result.ledger.skipped_risky for result in actual]
        alone = [result.ledger.skipped_risky for result in expected]
        assert all(ours <= theirs for ours, theirs in zip(skipped, alone, strict=True))
        assert sum(skipped) > 0 and (batch_size > 1 or skipped == alone)
