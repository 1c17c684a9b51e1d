"""What configs say that a text reads: its ends and its length; wrong ones are refused."""

import logging

import pytest
from model_zoo import zoo_model
from plain_forward import assert_recorded
from tiny_models import tiny_gpt2, tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.streams.configs import context_length


@pytest.mark.parametrize(
    ("place", "ends"),
    [("generation_config", -1), ("generation_config", True), ("config", [1, 0.5])],
)
def test_an_end_that_is_no_token_id_is_refused_when_the_pair_is_made(tokenizer, place, ends):
    risky = tiny_gpt2(2)
    object.__setattr__(getattr(risky, place), "eos_token_id", ends)
    reason = r"^eos_token_id must be a token id or a list of them, got .* in the risky model's "
    with pytest.raises(ValueError, match=reason) as refusal:
        ModelPair(tiny_llama(1), risky, tokenizer)
    assert "\n" not in str(refusal.value) and str(refusal.value).endswith(place)


def test_an_end_that_no_model_draws_is_said_once_when_the_pair_is_made(tokenizer, caplog):
    risky = tiny_llama(2)
    risky.config.eos_token_id = [1, 320]
    with caplog.at_level(logging.WARNING):
        pair = ModelPair(tiny_llama(1), risky, tokenizer)
        (result,) = Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_tokens=2)
    assert pair.stop_token_ids == [1] and not result.error
    assert caplog.messages == ["the risky model ends texts at token 320, which it does not have"]


def test_a_model_without_a_generation_config_ends_where_its_config_says(tokenizer, caplog):
    risky = tiny_llama(2, eos_token_id=2)
    risky.generation_config = None
    with caplog.at_level(logging.WARNING):
        pair = ModelPair(tiny_llama(1), risky, tokenizer)
    assert caplog.messages == ["the risky model has no generation_config that says where texts end"]
    (result,) = Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_tokens=3)
    assert pair.stop_token_ids == [1, 2] and verify(result.ledger, pair).is_ok


YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10_000.0}
ANGLES = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "rope_theta": 10_000.0}
LONG = {"rope_type": "longrope", **ANGLES, "factor": 4.0, "original_max_position_embeddings": 16}
LENGTHS = {
    "no rotary scale": ({}, 128),
    "yarn, the original length twice": ({**YARN, "original_max_position_embeddings": 128}, 512),
    "yarn, a short original length": ({**YARN, "original_max_position_embeddings": 16}, 128),
    "longrope": (LONG, 16),
}


@pytest.mark.parametrize(("rotary", "length"), LENGTHS.values(), ids=LENGTHS)
def test_the_context_is_what_the_rotary_embedding_reaches(rotary, length):
    rotary = {"rope_parameters": dict(rotary)} if rotary else {}
    assert context_length(tiny_llama(1, **rotary).config) == length


def test_yarn_decodes_beyond_the_original_length(tokenizer):
    def stretched(seed: int):
        return tiny_llama(seed, rope_parameters=dict(YARN), max_position_embeddings=16).float()

    pair = ModelPair(stretched(1), stretched(2), tokenizer)
    assert pair.context_length == 64
    decoder, prompt = Decoder(pair, Anchored(k=1.0)), "qzxjvkwbpq zxjvkwbpqz"
    assert len(pair.encode(prompt)) > 16
    (result,) = decoder.generate(prompt, max_new_tokens=6)
    assert not result.error and verify(result.ledger, pair).is_ok
    assert_recorded(pair, result)
    with pytest.raises(ValueError, match=r"context of 64"):
        decoder.generate(prompt, max_new_tokens=64)


def test_the_ends_of_a_composite_model_are_those_of_any_of_its_configs():
    safe = zoo_model("gemma3", 1)
    safe.config.text_config.eos_token_id = [1, 5]
    pair = ModelPair(safe, tiny_llama(2, vocab_size=64, eos_token_id=None), word_tokenizer(64))
    assert pair.stop_token_ids == [1, 5] and pair.context_lengths["safe"] == 64
