"""Texts of pairs with two tokenizers: prompts, ends, ledgers, rows that fail alone, refusals."""

import copy
import math

import pytest
from byte_pairs import PROMPTS, reference_of
from byte_tokenizers import SMOLLM2_LACKS, without_bytes
from tiny_models import tiny_llama
from transformers import PreTrainedTokenizerFast

from anchored import Anchored, Decoder, ModelPair, PromptCache, RiskyOnly, SafeOnly, verify
from anchored.decode.rules.budget import prefix_debt
from anchored.decode.tokenizer.vocabulary import END_SYMBOL

ENDS = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


def with_models(pair: ModelPair, **changes) -> ModelPair:
    """The pair with another model or tokenizer."""
    parts = {**pair.models, "tokenizer": pair.tokenizer, "risky_tokenizer": pair.risky_tokenizer}
    return ModelPair(**parts | changes)


def test_a_character_that_the_horizon_cuts_is_whole_in_the_continuation(pair):
    decoder, snowman = Decoder(pair, SafeOnly()), list("a\u2603".encode())
    (whole,) = decoder.generate([snowman[:2]], max_new_bytes=2, top_k=1)
    assert bytes([*snowman[:2], *whole.token_ids]).decode() == "a" + whole.text
    (cut,) = decoder.generate([snowman[:2]], max_new_bytes=1, top_k=1)
    (rest,) = decoder.generate(continue_from=cut, max_new_bytes=1, top_k=1)
    assert (cut.text, rest.text) == ("", whole.text)
    assert cut.token_ids + rest.token_ids == whole.token_ids
    assert verify(rest.ledger, pair).is_ok


def test_an_empty_prompt_is_what_comes_after_the_start_tokens(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    result, other = decoder.generate(["", "s"], max_new_bytes=3)
    assert len(result.token_ids) == len(other.token_ids) == 3
    assert (result.ledger.header.debt, result.ledger.header.prompt_token_ids) == (0.0, [])
    assert verify(result.ledger, pair).is_ok
    of_text, of_bytes = Decoder(pair, SafeOnly()).score(
        ["", ""], ["\u4e2d", list("\u4e2d".encode())]
    )
    log_probs = reference_of(pair, "safe").read([])
    assert of_text == of_bytes and len(of_text.token_ids) == 3
    assert of_text.token_log_probs[0] == pytest.approx(log_probs[0xE4].item(), abs=1e-9)


def test_the_end_of_either_model_ends_the_text(pair):
    eager = tiny_llama(1, max_position_embeddings=256)
    eager.lm_head.weight.data[1] *= 12
    ending = with_models(pair, safe=eager)
    results = Decoder(ending, Anchored(k=1.0)).generate(PROMPTS, max_new_bytes=20, seed=[*range(5)])
    ended = [result for result in results if result.finish_reason == "stop_token"]
    assert ended and all(result.token_ids[-1] == END_SYMBOL for result in ended)
    assert all(result.text == bytes(result.token_ids[:-1]).decode() for result in ended)
    assert verify(ended[0].ledger, ending).is_ok


def test_a_row_with_nan_logits_fails_alone(pair):
    broken = tiny_llama(2, vocab_size=300, max_position_embeddings=256)
    (token, *_) = pair.risky_tokenizer("\u4e2d", add_special_tokens=False)["input_ids"]
    broken.model.embed_tokens.weight.data[token] = math.nan
    decoder = Decoder(with_models(pair, risky=broken), Anchored(k=1.0))
    fine, failed, last = decoder.generate(["import", "a\u4e2d", "s"], max_new_bytes=4)
    assert failed.error.startswith("request 1: the risky model's logits")
    assert not fine.error and not last.error and len(fine.token_ids) == 4


@pytest.mark.parametrize("name", ["safe", "risky"])
def test_a_text_that_outgrows_a_context_fails_alone_and_says_so(pair, name):
    sizes = {"vocab_size": pair.models[name].config.vocab_size, "max_position_embeddings": 16}
    tight = with_models(pair, **{name: tiny_llama(1, **sizes)})
    decoder = Decoder(tight, Anchored(k=9.0, debt="none"))
    message = f"the text outgrows the {name} model's context of 16 tokens"
    long, short = decoder.generate(["zqxjzqxjz", "s"], max_new_bytes=12, temperature=1.0)
    assert long.error == f"request 0: {message}" and 0 < len(long.token_ids) < 12
    assert not short.error and len(short.token_ids) == 12
    assert verify(long.ledger, tight).is_ok
    long, short = decoder.score(["zqxjzqxjz", "s"], ["zqxjzqxj", "t"])
    assert long.error == message and math.isnan(long.log_prob) and not short.error


def test_what_comes_after_an_impossible_byte_is_impossible_too(pair):
    decoder = Decoder(pair, Anchored(k=0.5))
    cut, whole = decoder.score(["salt", "salt"], [[65, 0xFF, 66], [65, 66, 67]])
    assert cut.log_prob == -math.inf and not cut.error
    assert cut.token_log_probs[0] == pytest.approx(whole.token_log_probs[0], abs=1e-9)
    assert cut.token_log_probs[1:] == cut.safe_token_log_probs[1:] == [-math.inf] * 2
    assert cut.spend <= cut.bound and math.isfinite(whole.log_prob)


def test_bytes_without_a_token_in_one_model_are_never_drawn(pair):
    backend = without_bytes(pair.tokenizer.backend_tokenizer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **ENDS)
    lacking = with_models(pair, tokenizer=tokenizer)
    decoder = Decoder(lacking, Anchored(k=0.5))
    (result,) = decoder.generate("caf\u00e9 ", max_new_bytes=24, temperature=3.0)
    assert len(result.token_ids) == 24 and not SMOLLM2_LACKS & {*result.token_ids}
    assert verify(result.ledger, lacking).is_ok
    unlikely, likely = decoder.score(["salt"] * 2, ["\x04", "\x05"])
    assert unlikely.log_prob == -math.inf < likely.log_prob
    message = "the prompt holds byte 0x04, for which the safe model's tokenizer has no token"
    with pytest.raises(ValueError, match=message):
        decoder.generate("salt\x04", max_new_bytes=4)


def test_the_debt_is_that_of_all_bytes_but_the_first_in_nats_of_a_token(pair):
    (result,) = Decoder(pair, Anchored(k=1.0)).generate(PROMPTS[0], max_new_tokens=1)
    assert (result.ledger.header.horizon, result.ledger.header.K) == (4, 4.0)
    prompt = list(PROMPTS[0].encode())
    walks = {name: reference_of(pair, name).walk(prompt[:-1]) for name in pair.models}
    scores = {n: log_probs[range(len(log_probs)), prompt[1:]] for n, log_probs in walks.items()}
    expected = 4 * prefix_debt(scores["risky"] - scores["safe"])
    assert result.ledger.header.debt == pytest.approx(expected, abs=1e-9)


def test_a_kept_prompt_gives_the_same_text_at_any_k_and_seed_and_makes_room_for_new_ones(pair):
    off, cache, tight = PromptCache(0), PromptCache(), PromptCache(20_000)
    options = {"k": [0.2, 0.9, 0.9], "seed": [1, 2, 2], "max_new_bytes": 6}
    for rule in (Anchored(k=9.0), Anchored(k=9.0, divergence="max")):
        expected, actual = (
            Decoder(pair, rule, prompt_cache=prompts).generate([PROMPTS[0]] * 3, **options)
            for prompts in (off, cache)
        )
        assert [result.token_ids for result in actual] == [r.token_ids for r in expected]
        debts = [[result.ledger.header.debt for result in each] for each in (actual, expected)]
        assert debts[0] == pytest.approx(debts[1], abs=1e-9)
    assert len(off) == 0 and len(cache) == 2
    assert actual[0].ledger.safe_forwards < expected[0].ledger.safe_forwards
    Decoder(pair, RiskyOnly(), prompt_cache=tight).generate(PROMPTS, max_new_bytes=1)
    assert 2 * len(PROMPTS) > len(tight) > 0 and 0 < tight.num_bytes <= 20_000


def test_a_text_that_truncation_gave_no_probability_is_verified_by_what_it_begins_again_with(pair):
    """In bfloat16, where the tolerance of a size of 0 is too small for any rounding."""
    half = with_models(pair, **{n: copy.deepcopy(m).bfloat16() for n, m in pair.models.items()})
    decoder = Decoder(half, Anchored(k=0.5), level="byte")
    results = decoder.generate(PROMPTS[:3], max_new_bytes=30, temperature=0.85, top_k=20)
    assert all(verify([result.ledger for result in results], half))


def test_the_work_of_both_models_is_recorded_and_verified(pair):
    (result,) = Decoder(pair, Anchored(k=0.5)).generate(PROMPTS[0], max_new_tokens=3)
    ledger = result.ledger
    forwards = {"safe": ledger.safe_forwards, "risky": ledger.risky_forwards}
    for name, work in ledger.work.items():
        assert work["num_forwards"] == forwards[name] and 0 < work["masked_mass"] < 1
    report = verify(ledger, pair)
    assert report.is_ok, report


def test_what_a_level_cannot_do_is_refused_in_one_line(pair):
    one = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    for prompt, message in [
        ([300], r"bytes must be in \[0, 256\), got 300"),
        ([0xFF], "not the beginning of a UTF-8 text"),
        ("salt " * 60, r"the prompt has \d+ tokens of the safe model; .*context of 256"),
    ]:
        with pytest.raises(ValueError, match=message):
            Decoder(pair, Anchored(k=1.0)).generate(prompt, max_new_bytes=200)
    with pytest.raises(ValueError, match=r'different tokenizers \(320 and 300 tokens\): .*"byte"'):
        Decoder(pair, Anchored(k=1.0), level="token")
    with pytest.raises(ValueError, match='max_new_bytes needs level="byte"'):
        Decoder(one, Anchored(k=1.0)).generate("salt", max_new_bytes=5)
    with pytest.raises(ValueError, match='a prompt cache needs level="byte"'):
        Decoder(one, Anchored(k=1.0), prompt_cache=PromptCache())
