"""Texts of pairs with two tokenizers: batches, streams, ends, scores, and rows that fail alone."""

import math

import pytest
from byte_pairs import PROMPTS
from tiny_models import tiny_gpt2, tiny_llama

from anchored import Anchored, Decoder, ModelPair, SafeOnly, verify
from anchored.decode.tokenizer.vocabulary import END_SYMBOL


def test_streamed_pieces_hold_whole_characters_and_join_to_the_text(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    for seed in range(2):
        (whole,) = decoder.generate(PROMPTS[3], max_new_bytes=20, seed=seed, temperature=1.5)
        pieces = list(decoder.stream(PROMPTS[3], max_new_bytes=20, seed=seed, temperature=1.5))
        assert [piece.token_id for piece in pieces] == whole.token_ids
        assert "".join(piece.text for piece in pieces) == whole.text
        assert whole.text == bytes(whole.token_ids).decode(errors="replace")
        assert not any("\ufffd" in piece.text for piece in pieces[:-1])


def test_the_end_of_either_model_ends_the_text(pair):
    eager = tiny_llama(1, max_position_embeddings=256)
    eager.lm_head.weight.data[1] *= 12
    ending = ModelPair(eager, pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    results = Decoder(ending, Anchored(k=1.0)).generate(PROMPTS, max_new_bytes=20, seed=[*range(5)])
    ended = [result for result in results if result.finish_reason == "stop_token"]
    assert ended and all(result.token_ids[-1] == END_SYMBOL for result in ended)
    assert all(result.text == bytes(result.token_ids[:-1]).decode() for result in ended)
    assert verify(ended[0].ledger, ending).is_ok


def test_text_and_bytes_score_alike(pair):
    decoder = Decoder(pair, SafeOnly())
    text, given = decoder.score(["caf\u00e9", "caf\u00e9"], [" \u4e2d!", list(" \u4e2d!".encode())])
    assert text == given and len(text.token_ids) == 5


def test_a_row_with_nan_logits_fails_alone(pair):
    broken = tiny_llama(2, vocab_size=300, max_position_embeddings=256)
    (token, *_) = pair.risky_tokenizer("\u4e2d", add_special_tokens=False)["input_ids"]
    broken.model.embed_tokens.weight.data[token] = math.nan
    sick = ModelPair(pair.safe, broken, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    fine, failed, last = Decoder(sick, Anchored(k=1.0)).generate(
        ["import", "a\u4e2d", "s"], max_new_bytes=4
    )
    assert failed.error.startswith("request 1: the risky model's logits")
    assert not fine.error and not last.error and len(fine.token_ids) == 4


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_a_text_that_outgrows_a_context_fails_alone_and_says_so(pair, name):
    vocab_size = pair.models[name].config.vocab_size
    models = {**pair.models, name: tiny_llama(1, vocab_size=vocab_size, max_position_embeddings=16)}
    tight = ModelPair(**models, tokenizer=pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    decoder = Decoder(tight, Anchored(k=9.0, debt="none"))
    message = f"the text outgrows the {name} model's context of 16 tokens"
    long, short = decoder.generate(["zqxjzqxjz", "s"], max_new_bytes=12, temperature=1.0)
    assert long.error == f"request 0: {message}" and 0 < len(long.token_ids) < 12
    assert not short.error and len(short.token_ids) == 12
    assert verify(long.ledger, tight).is_ok
    long, short = decoder.score(["zqxjzqxjz", "s"], ["zqxjzqxj", "t"])
    assert long.error == message and math.isnan(long.log_prob) and not short.error


def test_what_stands_behind_an_impossible_byte_is_impossible_too(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    cut, whole = decoder.score(["salt", "salt"], [[65, 0xFF, 66], [65, 66, 67]])
    assert cut.log_prob == -math.inf and not cut.error
    assert cut.token_log_probs[0] == pytest.approx(whole.token_log_probs[0], abs=1e-9)
    assert cut.token_log_probs[1:] == cut.safe_token_log_probs[1:] == [-math.inf] * 2
    assert cut.spend <= cut.bound and math.isfinite(whole.log_prob)


@pytest.mark.parametrize("setting", [{"top_k": 1}, {"top_p": 0.01}, {"min_p": 0.99}], ids=str)
def test_a_truncation_always_leaves_a_token_that_may_follow(pair, setting):
    results = Decoder(pair, Anchored(k=1.0)).generate(PROMPTS, max_new_bytes=8, **setting)
    assert [result.error for result in results] == [""] * len(PROMPTS)
    assert verify(results[0].ledger, pair).is_ok


def test_the_level_and_the_horizon(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    assert decoder.level.name == "byte"
    (result,) = decoder.generate("salt", max_new_tokens=3)
    header = result.ledger.header
    assert (header.horizon, header.K) == (12, 6.0) and len(result.token_ids) == 12
    assert "12 bytes" in str(result)
    one = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    assert Decoder(one, SafeOnly()).level.name == "token"
    assert Decoder(one, SafeOnly(), level="byte").level.name == "byte"


def test_other_families_decode_bytes_too(pair):
    gpt2 = ModelPair(tiny_gpt2(1), pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)
    (result,) = Decoder(gpt2, Anchored(k=0.5)).generate("salt", max_new_bytes=12)
    assert verify(result.ledger, gpt2).is_ok
