"""Speculative rounds give the tokens and ledgers of plain decoding."""

import math
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_forward import assert_same
from tiny_models import TEXT, tiny_llama, word_prompts, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, Pathwise, RiskyOnly, verify

PLAIN = {"temperature": 1.0, "repetition_penalty": 1.0}


def generate(pair, rule, speculate, texts, *, batch_size=16, order=None, **settings):
    """Results in the order of the prompts, generated in the given order."""
    order = order or list(range(len(texts)))
    settings = {"max_new_tokens": 12, "temperature": 1.0, **settings}
    decoder = Decoder(pair, rule, batch_size=batch_size, speculate=speculate)
    results = decoder.generate([texts[i] for i in order], seed=order, **settings)
    return [result for _, result in sorted(zip(order, results, strict=True), key=lambda x: x[0])]


@pytest.mark.parametrize(
    ("rule", "speculate"), [(Anchored(k=0.4), 1), (Pathwise(k=0.5, bank=3.0), 4)], ids=str
)
def test_every_draft_length_gives_the_plain_tokens_and_ledgers(ending_pair, rule, speculate):
    texts = word_prompts(8)
    plain = generate(ending_pair, rule, "off", texts)
    order = random.Random(1).sample(range(8), 8)
    ours = generate(ending_pair, rule, speculate, texts, batch_size=5, order=order)
    assert_same(plain, ours)
    assert len({len(result.token_ids) for result in ours}) > 2
    assert any(result.ledger.accepted for result in ours)
    assert verify(ours[0].ledger, ending_pair).is_ok


@cache
def make_pair(vocab_size: int) -> ModelPair:
    sizes = {"vocab_size": vocab_size, "layers": 1, "hidden_size": 16, "intermediate_size": 16}
    models = [tiny_llama(seed, **sizes) for seed in (1, 2)]
    for model in models:
        model.lm_head.weight.data *= 1.5
    return ModelPair(*models, word_tokenizer(vocab_size))


@settings(max_examples=6)
@given(
    vocab_size=st.integers(4, 6),
    gamma=st.integers(1, 4),
    rule=st.builds(
        Anchored,
        k=st.sampled_from([0.1, 0.3, 1.0]),
        divergence=st.sampled_from(["kl", "max"]),
        budget=st.sampled_from(["adaptive", "global", "fixed"]),
        debt=st.sampled_from(["top", "none"]),
    )
    | st.builds(Anchored, k=st.just(0.3), bank=st.sampled_from([0.0, 0.2]), debt=st.just("none"))
    | st.just(RiskyOnly())
    | st.builds(Pathwise, k=st.sampled_from([0.0, 0.3]), bank=st.sampled_from([0.0, 0.5, 3.0])),
    sampling=st.sampled_from(
        [{}, {"temperature": 0.8, "repetition_penalty": 1.3, "top_k": 3}, {"temperature": 0.0}]
    ),
    seed=st.integers(0, 2**62),
)
def test_few_tokens_are_drafted_and_replaced_in_every_way_as_plainly(
    vocab_size, gamma, rule, sampling, seed
):
    """The same token for every uniform: rounds have plain decoding's distribution, exactly."""
    pair = make_pair(vocab_size)
    plain, ours = (
        Decoder(pair, rule, batch_size=16, speculate=speculate).generate(
            [[0, 3]] * 16, seed=range(seed, seed + 16), max_new_tokens=5, **PLAIN | sampling
        )
        for speculate in ("off", gamma)
    )
    assert_same(plain, ours)


@pytest.mark.parametrize(("gamma", "num_tokens"), [(1, 13), (5, 13), (30, 1)])
def test_identical_models_accept_every_draft(tokenizer, gamma, num_tokens):
    pair = ModelPair(tiny_llama(1), tiny_llama(1), tokenizer)
    decoder = Decoder(pair, Anchored(k=1.0), speculate=gamma)
    for result in decoder.generate(word_prompts(3), max_new_tokens=num_tokens, temperature=1.0):
        ledger, drawn = result.ledger, len(result.token_ids)
        assert ledger.accepted == ledger.drafted
        # After the prompt each forward gives a draft and one token more.
        assert drawn < num_tokens or ledger.risky_forwards == 1 + math.ceil(
            (drawn - 1) / (gamma + 1)
        )
        assert ledger.safe_forwards == drawn


def test_a_debt_above_k_leaves_the_risky_model_with_the_prompt(pair):
    decoder = Decoder(pair, Anchored(k=0.01), speculate=4)
    (result,) = decoder.generate(TEXT[2], max_new_tokens=9)
    assert result.ledger.header.bound == 0.0
    assert result.ledger.risky_forwards == 1 and result.ledger.drafted == 0
    assert result.ledger.skipped_risky == len(result.token_ids) - 1


@pytest.mark.parametrize("speculate", ["off", 3])
def test_the_forwards_of_one_request_are_those_of_its_ledger(pair, forwards, speculate):
    decoder = Decoder(pair, Anchored(k=0.4), speculate=speculate)
    forwards.clear()
    (result,) = decoder.generate(TEXT[2], max_new_tokens=20)
    ledger = result.ledger
    assert forwards == {"safe": ledger.safe_forwards, "risky": ledger.risky_forwards}
    assert ledger.risky_forwards < len(result.token_ids) - 1


def test_a_stop_string_inside_a_draft_drops_what_comes_after_it(pair):
    settings = {"max_new_tokens": 20, "temperature": 1.0}
    same = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    (whole,) = Decoder(same, Anchored(k=1.0)).generate(TEXT[0], **settings)
    stop = [whole.text[6:8]]
    (plain,) = Decoder(same, Anchored(k=1.0)).generate(TEXT[0], stop=stop, **settings)
    (ours,) = Decoder(same, Anchored(k=1.0), speculate=8).generate(TEXT[0], stop=stop, **settings)
    assert ours.finish_reason == "stop_string" and ours.token_ids == plain.token_ids


def test_a_row_that_catches_up_with_all_others_keeps_its_distributions(pair):
    """It is read for alone, so the rows are walked in another order."""
    texts, settings = [TEXT[0], TEXT[1], TEXT[2]], {"max_new_tokens": 24, "temperature": 1.0}
    ks = [0.5, 5.0, 1.0]
    plain = [
        Decoder(pair, Anchored(k=k)).generate([text], seed=i, **settings)[0]
        for i, (text, k) in enumerate(zip(texts, ks, strict=True))
    ]
    assert len({result.ledger.skipped_risky for result in plain}) > 1
    decoder = Decoder(pair, Anchored(k=1.0), batch_size=3, speculate=2)
    assert_same(plain, decoder.generate(texts, k=ks, seed=[0, 1, 2], **settings))
