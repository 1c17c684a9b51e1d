"""Prompts at byte level: their debts, and rows kept for another k or seed."""

import pytest
from byte_pairs import PROMPTS, reference_of

from anchored import Anchored, ByteSettings, Decoder, PromptCache, RiskyOnly, SafeOnly, verify
from anchored.decode.rules.prefix_debt import prefix_debt


def test_the_debt_is_that_of_all_bytes_but_the_first_in_nats_of_a_token(pair):
    (result,) = Decoder(pair, Anchored(k=1.0)).generate(PROMPTS[0], max_new_bytes=1)
    prompt = list(PROMPTS[0].encode())
    scores = {n: reference_of(pair, n).read([prompt], [0]).token_log_probs[0] for n in pair.models}
    assert len(scores["safe"]) == len(prompt) - 1
    expected = 4 * prefix_debt(scores["risky"] - scores["safe"])
    assert result.ledger.header.debt == pytest.approx(expected, abs=1e-9)


def test_a_bounded_debt_is_never_below_the_exact_one(pair):
    settings = ByteSettings(debt="bounded")
    exact = Decoder(pair, Anchored(k=1.0)).generate(PROMPTS, max_new_bytes=1)
    bounded = Decoder(pair, Anchored(k=1.0), byte_settings=settings).generate(
        PROMPTS, max_new_bytes=1
    )
    for less, more in zip(exact, bounded, strict=True):
        assert more.ledger.header.debt >= less.ledger.header.debt - 1e-9
        assert verify(more.ledger, pair).is_ok


def test_a_kept_prompt_gives_the_same_text_at_any_k_and_seed(pair):
    off = PromptCache(0)
    cache = PromptCache()
    requests = {"k": [0.2, 0.9, 0.9], "seed": [1, 2, 2], "max_new_bytes": 10}
    for rule in (Anchored(k=9.0), Anchored(k=9.0, divergence="max"), SafeOnly()):
        for temperature in (0.7, 1.3):
            expected, actual = (
                Decoder(pair, rule, prompt_cache=prompts).generate(
                    [PROMPTS[0]] * 3, temperature=temperature, **requests
                )
                for prompts in (off, cache)
            )
            assert [result.token_ids for result in actual] == [r.token_ids for r in expected]
            for one, other in zip(actual, expected, strict=True):
                assert one.ledger.header.debt == pytest.approx(other.ledger.header.debt, abs=1e-9)
    assert len(off) == 0 and len(cache) == 2
    assert actual[0].ledger.safe_forwards < expected[0].ledger.safe_forwards
    assert cache.num_bytes > 0


def test_kept_prompts_make_room_for_new_ones(pair):
    whole, tight = PromptCache(), PromptCache(20_000)
    for cache in (whole, tight):
        Decoder(pair, RiskyOnly(), prompt_cache=cache).generate(PROMPTS, max_new_bytes=1)
    assert len(whole) == 2 * len(PROMPTS) > len(tight) > 0
    assert tight.num_bytes <= 20_000 < whole.num_bytes
