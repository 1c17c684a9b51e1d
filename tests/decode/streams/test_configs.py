"""What configs say that a text reads: its ends and its length; wrong ones are refused."""

import logging

import pytest
from model_zoo import zoo_model
from plain_forward import assert_recorded
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.streams.configs import context_length


def test_without_a_generation_config_texts_end_where_the_config_says_at_tokens_that_are(
    tokenizer, caplog
):
    risky = tiny_llama(2, eos_token_id=[2, 320])
    risky.generation_config = None
    with caplog.at_level(logging.WARNING):
        pair = ModelPair(tiny_llama(1), risky, tokenizer)
        (result,) = Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_tokens=3)
    assert pair.stop_token_ids == [1, 2] and verify(result.ledger, pair).is_ok
    assert caplog.messages == [
        "the risky model has no generation_config that says where texts end",
        "the risky model ends texts at token 320, which it does not have",
    ]


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
