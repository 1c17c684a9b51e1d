"""Ledgers of byte-level decoding: within their bound, complete, and verified by a replay."""

import dataclasses

import pytest
from byte_pairs import PROMPTS, llama3_tokenizer

from anchored import Anchored, ByteSettings, Decoder, ModelPair, RiskyOnly, verify


@pytest.mark.parametrize(
    "settings",
    [{"mode": "raw"}, {"warped": "byte"}, {"tau": 0.05}, {"prefetch": 4}, {"tau": 0.01}],
    ids=str,
)
def test_every_setting_is_recorded_and_verified(pair, settings):
    decoder = Decoder(pair, Anchored(k=0.5), byte_settings=ByteSettings(**settings))
    (result,) = decoder.generate(PROMPTS[0], max_new_bytes=20)
    header = result.ledger.header
    assert header.level == "byte" and settings.items() <= header.level_settings.items()
    assert set(header.level_settings["tokenizers"]) == {"safe", "risky"}
    assert result.ledger.is_within_bound
    report = verify(result.ledger, pair)
    assert report.is_ok, report


def test_a_changed_byte_and_another_tokenizer_are_found(pair):
    (result,) = Decoder(pair, Anchored(k=0.5)).generate(PROMPTS[0], max_new_bytes=8)
    ledger = result.ledger
    steps = list(ledger.steps)
    steps[4] = dataclasses.replace(steps[4], token_id=ord("x") + (steps[4].token_id == ord("x")))
    assert not verify(dataclasses.replace(ledger, steps=steps), pair).is_ok
    other = ModelPair(
        pair.safe,
        pair.risky,
        pair.tokenizer,
        pair.fingerprints,
        risky_tokenizer=llama3_tokenizer(299),
    )
    report = verify(ledger, other)
    assert "the tokenizers, or their stop tokens, are not the recorded ones" in report.failures


def test_ledgers_tell_what_was_computed_and_what_masking_took(pair):
    decoder = Decoder(pair, RiskyOnly(), byte_settings=ByteSettings(tau=0.3))
    (result,) = decoder.generate(PROMPTS[0], max_new_bytes=24)
    ledger, work = result.ledger, result.ledger.work
    assert 0 < work["safe"]["masked_mass"] < 1 and 0 < work["risky"]["masked_mass"] < 1
    assert ledger.safe_forwards == work["safe"]["num_forwards"]
    assert ledger.risky_forwards == work["risky"]["num_forwards"] < ledger.safe_forwards
    assert 0 == work["safe"]["max_total_variation"] < work["risky"]["max_total_variation"] <= 0.3
