"""Decoding on the device gives the tokens and ledgers of the eager engine."""

from functools import partial

import pytest
import torch
from device_results import KL, MAX, PROMPTS, assert_same, both, pair_of, stopping_llamas
from tiny_models import tiny_llama

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.engine.device_step import NUM_KEPT
from anchored.decode.models import column_attention

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def llama_pair(tokenizer) -> ModelPair:
    return stopping_llamas(tokenizer)


@pytest.mark.parametrize("rule", [KL, MAX], ids=["kl", "max"])
def test_rows_that_join_and_leave_get_the_eager_tokens_and_ledgers_that_verify(llama_pair, rule):
    expected, actual = both(llama_pair, rule, seed=4, max_new_tokens=10, temperature=1.0)
    assert_same(expected, actual)
    assert len({len(result.token_ids) for result in actual}) > 1
    for result in actual:
        assert result.ledger.certified and result.ledger.is_within_bound
        assert verify(result.ledger, llama_pair).is_ok


@pytest.mark.parametrize(
    ("family", "rule"),
    [
        ("qwen2", Anchored(k=1.0, budget="fixed", divergence="max")),
        ("gpt2", Anchored(k=6.0, budget="global")),
        pytest.param("qwen3", KL, marks=pytest.mark.slow),
        pytest.param("mistral", MAX, marks=pytest.mark.slow),
        pytest.param("olmo2", KL, marks=pytest.mark.slow),
    ],
)
def test_every_family_gets_the_eager_tokens(tokenizer, family, rule):
    pair = pair_of(tokenizer, family)
    expected, actual = both(pair, rule, PROMPTS[:2], max_new_tokens=6)
    assert_same(expected, actual)
    assert verify(actual[0].ledger, pair).is_ok


@pytest.mark.slow
@pytest.mark.parametrize("rule", [KL, MAX], ids=["kl", "max"])
def test_many_requests_in_batches_of_three(llama_pair, rule):
    prompts = [prompt * (1 + index % 3) for index, prompt in enumerate(PROMPTS * 2)]
    assert_same(*both(llama_pair, rule, prompts, batch_size=3, max_new_tokens=NUM_KEPT + 2))


def test_one_row_alone_and_a_stop_string_that_only_the_host_sees(llama_pair):
    (free,) = Decoder(llama_pair, KL, engine="eager").generate(
        PROMPTS[:1], max_new_tokens=2 * NUM_KEPT, seed=11
    )
    stop = "".join(text for text, _ in free.pieces)[3:6]
    expected, actual = both(
        llama_pair, KL, PROMPTS[:1], seed=11, max_new_tokens=2 * NUM_KEPT, stop=(stop,)
    )
    assert_same(expected, actual)
    assert actual[0].finish_reason == "stop_string"
    assert len(actual[0].token_ids) < NUM_KEPT  # others were drawn after it, and dropped


def test_a_row_whose_logits_become_nan_fails_alone(tokenizer):
    safe, risky = tiny_llama(1).float(), tiny_llama(2, layers=3).float()
    pair = ModelPair(safe, risky, tokenizer)
    first, second = Decoder(pair, KL, engine="eager").generate(PROMPTS[:2], max_new_tokens=6)
    poison = first.token_ids[2]
    assert poison not in first.token_ids[:2] + second.token_ids
    risky.model.embed_tokens.weight.data[poison] = torch.nan
    expected, actual = both(pair, KL, PROMPTS[:2] + PROMPTS[1:2], seed=0, max_new_tokens=6)
    assert_same(expected, actual)
    failed, *others = actual
    assert "request 0: the risky model's logits at step 3 are NaN" in failed.error
    assert len(failed.token_ids) == 3 and not failed.ledger.certified
    assert not any(result.error for result in others)


def test_pieces_come_as_the_eager_engine_gives_them_and_the_batch_is_kept(llama_pair):
    settings = {"max_new_tokens": 5, "seed": 2}
    decoders = [Decoder(llama_pair, KL, engine=name) for name in ("eager", "device")]
    expected, actual = ([*d.stream(PROMPTS[0], **settings)] for d in decoders)
    assert [piece.text for piece in actual] == [piece.text for piece in expected]
    kept = decoders[1].engine._kept._batches[0]
    expected, actual = (
        d.generate(PROMPTS[1:2], temperature=1.3, repetition_penalty=1.0, **settings)
        for d in decoders
    )
    assert_same(expected, actual)
    assert decoders[1].engine._kept._batches == [kept]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_the_triton_attention_gives_the_eager_tokens_too(tokenizer, monkeypatch):
    triton_attention = partial(column_attention.decode_attention, backend="triton")
    monkeypatch.setattr(column_attention, "decode_attention", triton_attention)
    assert_same(*both(pair_of(tokenizer, "qwen3"), KL, PROMPTS[:2], max_new_tokens=3))
