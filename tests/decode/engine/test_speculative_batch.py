"""Speculative rounds give the tokens and ledgers of plain decoding, and leave nothing else."""

import copy
import itertools
import math
import random
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_forward import assert_same
from tiny_models import TEXT, tiny_llama, word_prompts, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, Pathwise, RiskyOnly, verify
from anchored.decode.streams.row_stream import RowStream

PLAIN = {"temperature": 1.0, "repetition_penalty": 1.0}


@pytest.fixture(scope="module")
def ending_pair(tokenizer) -> ModelPair:
    """Texts end at stop tokens after anything from 1 to 30 steps, drafts do too."""
    safe, risky = tiny_llama(1), tiny_llama(2, layers=3)
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 1.25
    return ModelPair(safe, risky, tokenizer)


@pytest.mark.parametrize(
    ("rule", "speculate"), [(Anchored(k=0.4), 1), (Pathwise(k=0.5, bank=3.0), 4)], ids=str
)
def test_every_draft_length_gives_the_plain_tokens_and_ledgers(ending_pair, rule, speculate):
    texts, options = word_prompts(8), {"max_new_tokens": 12, "temperature": 1.0}
    plain = Decoder(ending_pair, rule).generate(texts, seed=range(8), **options)
    order = random.Random(1).sample(range(8), 8)
    decoder = Decoder(ending_pair, rule, batch_size=5, speculate=speculate)
    drawn = decoder.generate([texts[i] for i in order], seed=order, **options)
    ours = [drawn[order.index(i)] for i in range(8)]
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


def broken_pair(pair: ModelPair, name: str, token_ids: list[int]) -> ModelPair:
    """The same pair, of which one model says NaN after these tokens."""
    models = copy.deepcopy(pair.models)
    models[name].model.embed_tokens.weight.data[token_ids] = math.nan
    return ModelPair(*models.values(), pair.tokenizer)


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_nan_after_a_rejection_is_ignored(pair, name, monkeypatch):
    """Tokens that are drafted and never drawn break one model: their traces are wiped out."""
    texts = ["salt", "a", "rain", TEXT[1]]  # what short rows left lies among the longest one's
    options, feed, read = {"max_new_tokens": 12, "temperature": 1.0}, RowStream.feed, set()

    def noted(stream, rows, tokens, num_last=1):
        read.update(itertools.chain(*tokens))
        return feed(stream, rows, tokens, num_last)

    monkeypatch.setattr(RowStream, "feed", noted)
    plain = Decoder(pair, Anchored(k=1.0), speculate=3).generate(texts, **options)
    rejected = read.difference(*(r.token_ids for r in plain), *map(pair.encode, texts))
    rejected = {token for token in rejected if token > 70}  # the check of a pair reads others
    assert rejected
    broken = Decoder(broken_pair(pair, name, [*rejected]), Anchored(k=1.0), speculate=3)
    read.clear()
    for result, expected in zip(broken.generate(texts, **options), plain, strict=True):
        assert not result.error and result.token_ids == expected.token_ids
    assert rejected & read


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_nan_that_is_reached_fails_the_request_alone(pair, name):
    options = {"max_new_tokens": 12, "temperature": 1.0}
    (plain,) = Decoder(pair, Anchored(k=1.0)).generate(TEXT[1], **options)
    broken = broken_pair(pair, name, [plain.token_ids[4]])
    for speculate in ("off", 3):
        decoder = Decoder(broken, Anchored(k=1.0), speculate=speculate)
        (failed,) = decoder.generate([TEXT[1]], **options)
        assert failed.token_ids == plain.token_ids[:5]
        assert f"the {name} model's logits at step 5 are NaN" in failed.error
