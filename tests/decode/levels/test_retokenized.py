"""TokenSwap over two tokenizers: the risky model's tokens, the safe model's reading of their text.

The oracle: plain forwards in float64 over whole texts, tokenized from nothing at each step.
"""

import codecs
import itertools
import json
import logging
import math
from dataclasses import replace

import pytest
import torch
from byte_pairs import llama3_tokenizer, tiny_byte_pair
from model_zoo import zoo_model
from tiny_models import tiny_llama, train_tokenizer
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from anchored import Decoder, LedgerError, ModelPair, TokenSwap, verify
from anchored import with_divergences as longer
from anchored.decode.tokenizer.tokenizer_file import token_bytes
from anchored.decode.verify.replay import Replay

WORDS = ["the", "of", "lamp", "keeper"]
PROMPTS = ["the keeper of the lamp", "import math", "s", "Nine tides ago, the harbour"]
SAMPLING = {"temperature": 0.8, "repetition_penalty": 1.2}


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return tiny_byte_pair()


def ids_of(tokenizer, text, **options) -> list[int]:
    return tokenizer(text, **options)["input_ids"]


def next_log_probs(model, token_ids: list[int], num_tokens: int, stops: list[int]) -> torch.Tensor:
    """(num_tokens,) warped log-probabilities after a text, by the plain forward."""
    with torch.inference_mode():
        logits = model(torch.tensor([token_ids])).logits[0, -1, :num_tokens]
    logits = logits.clone().double()
    seen = sorted(set(token_ids))
    penalty = SAMPLING["repetition_penalty"]
    logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
    logits /= SAMPLING["temperature"]
    merged = logits[stops].logsumexp(-1)
    logits[stops] = -torch.inf
    logits[stops[0]] = merged
    return logits.log_softmax(-1)


def bytes_of(tokenizer) -> dict[int, bytes]:
    """Of ordinary tokens, by the alphabet of byte-level BPE."""
    ordinary = set(tokenizer.get_vocab().values()) - set(tokenizer.all_special_ids) - {2}
    entries = zip(ordinary, tokenizer.convert_ids_to_tokens([*ordinary]), strict=True)
    return {token_id: token_bytes(entry) for token_id, entry in entries}


def whole_characters(text: bytes) -> str:
    """Without an unfinished one at the end; ill-formed ones replaced."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(text)


def swapped_probs(pair: ModelPair, symbols: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(p*, p_r) after symbols of the risky model, by the formula."""
    safe, risky = pair.tokenizers["safe"], pair.tokenizers["risky"]
    ids = [
        [ids_of(t, word, add_special_tokens=False)[0] for word in (" the", " of")]
        for t in (risky, safe)
    ]
    both = dict(zip(*ids, strict=True))
    text = whole_characters(b"".join(map(bytes_of(risky).get, symbols, itertools.repeat(b""))))
    stops = [pair.stop_tokens_of(name) for name in ("safe", "risky")]
    p_s = next_log_probs(pair.safe, ids_of(safe, text), len(safe), stops[0]).exp()
    p_r = next_log_probs(pair.risky, symbols, len(risky), stops[1]).exp()
    star, listed = p_r.clone(), sum(p_r[risky_token] for risky_token in both)
    for risky_token, other in both.items():
        star[risky_token] = listed * p_s[other] / sum(p_s[twin] for twin in both.values())
    return star, p_r


def test_the_distribution_is_the_formula_s_over_the_text_read_again(pair):
    decoder = Decoder(pair, TokenSwap(words=WORDS))
    for result in decoder.generate(PROMPTS, max_new_tokens=12, seed=2, **SAMPLING):
        symbols = list(result.ledger.header.prompt_token_ids)
        replayed = Replay(result.ledger, pair).steps()
        for forced, step in zip(replayed, result.ledger.steps, strict=True):
            expected, p_r = swapped_probs(pair, symbols)
            probs = forced.drawn.log_probs()[0].exp()
            assert (probs - expected).abs().max() < 1e-12
            assert step.log_prob == pytest.approx(math.log(expected[step.token_id]), abs=1e-9)
            assert probs.sum().item() == pytest.approx(1.0, abs=1e-12)
            off_list = (expected == p_r).nonzero()[:, 0]
            assert len(off_list) == len(p_r) - 2
            torch.testing.assert_close(probs[off_list], p_r[off_list], atol=1e-13, rtol=1e-9)
            symbols.append(step.token_id)


def test_tokens_that_later_ones_change_are_read_again(pair):
    """Two spaces are a token, until a letter comes after them."""
    risky, decoder = pair.tokenizers["risky"], Decoder(pair, TokenSwap(words=WORDS))
    symbols = [ids_of(risky, c, add_special_tokens=False)[0] for c in (" ", " ", "a", " the")]
    (score,) = decoder.score("x", [symbols], **SAMPLING)
    expected = swapped_probs(pair, [*ids_of(risky, "x"), *symbols[:-1]])[0][symbols[-1]]
    assert score.token_log_probs[-1] == pytest.approx(math.log(expected), abs=1e-9)


def test_a_safe_model_whose_rows_cannot_be_cut_back_reads_the_text_again(pair):
    """A recurrent one, in float32."""
    recurrent = zoo_model("mamba2", 1)
    # Its 64 tokens are the first of a tokenizer of more: bytes up to "=", say.
    recurrent.resize_token_embeddings(320)
    tokenizers, risky = pair.tokenizers, tiny_llama(2, vocab_size=300)
    lone = ModelPair(recurrent, risky, pair.tokenizer, risky_tokenizer=tokenizers["risky"])
    results = Decoder(lone, TokenSwap(words=WORDS)).generate(PROMPTS[:2], max_new_tokens=3)
    for result in results:
        report = verify(result.ledger, lone)
        assert report, report.failures


def test_the_words_that_are_left_out_are_said_once_and_recorded(pair, caplog):
    with caplog.at_level(logging.WARNING):
        decoder = Decoder(pair, TokenSwap(words=WORDS))
        (result,) = decoder.generate(["the keeper"], max_new_tokens=3)
        assert caplog.text.count("leaves out 2 of 4 words") == 1
        assert "which are not one token of both models: lamp, keeper" in caplog.text
        caplog.clear()
        assert verify(result.ledger, pair)
        assert caplog.text.count("leaves out") == 1
    words = {"swapped": ["the", "of"], "left_out": ["lamp", "keeper"]}
    assert result.ledger.header.words == words
    forged = replace(result.ledger.header, words={**words, "left_out": []})
    (failure,) = verify(replace(result.ledger, header=forged), pair).failures[:1]
    assert "the words that token_swap uses" in failure


@pytest.mark.parametrize(
    "changes",
    [
        {"level_settings": {"tokens_of": "risky"}},
        {"prompt_ratios": [0.0]},
        {"rule": "cp_fuse", "rule_settings": {}, "words": None},
        {"prompt_token_ids": [300, 4]},
    ],
    ids=str,
)
def test_what_was_changed_in_a_ledger_is_noticed(pair, changes):
    (result,) = Decoder(pair, TokenSwap(words=WORDS)).generate(["the keeper"], max_new_tokens=6)
    forged = replace(result.ledger, header=replace(result.ledger.header, **changes))
    assert not verify(forged, pair)


def test_what_compares_both_models_is_refused_by_name(pair):
    decoder = Decoder(pair, TokenSwap(words=WORDS))
    (result,) = decoder.generate(["the keeper"], max_new_tokens=2)
    with pytest.raises(LedgerError, match="have different tokens, so no divergence is known"):
        longer(result.ledger, pair)
    with pytest.raises(ValueError, match="no prompt ratios: its models have different tokens"):
        decoder.prompt_ratios("the keeper")
    with pytest.raises(ValueError, match=r"TokenSwap .* cannot decode at byte level"):
        Decoder(pair, TokenSwap(), level="byte")
    with pytest.raises(ValueError, match="reads more than both models' next tokens"):
        Decoder(pair, TokenSwap(), speculate=2)
    with pytest.raises(ValueError, match="none of the 2 words is one token of both models: lamp"):
        Decoder(pair, TokenSwap(words=["lamp", "keeper"]))


def test_a_text_that_outgrows_the_safe_model_says_so():
    """Where a symbol is several tokens of the safe model, its context ends first."""
    safe = tiny_llama(1, max_position_embeddings=9)
    models, other = (safe, tiny_llama(2, vocab_size=300)), llama3_tokenizer(300)
    small = ModelPair(*models, train_tokenizer(320), risky_tokenizer=other)
    decoder = Decoder(small, TokenSwap(words=["the"]))
    level = decoder.level
    spelled = bytes_of(small.tokenizers["risky"])
    longest = max(spelled.keys() - level.same_tokens.keys(), key=lambda t: len(spelled[t]))
    short, long = decoder.score(["s", "s"], [level.encode_continuation(" the") * 6, [longest] * 6])
    assert short.error == ""
    assert long.error == "the text outgrows the safe model's context of 9 tokens"
    with pytest.raises(ValueError, match="2 tokens of the safe model; with 8 new ones it exceeds"):
        decoder.generate("s", max_new_tokens=8)


def test_ids_with_gaps_keep_their_last_tokens(pair):
    content = json.loads(pair.tokenizers["risky"].backend_tokenizer.to_str())
    del content["model"]["vocab"]["<|turn|>"], content["added_tokens"][2]
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    backend = Tokenizer.from_str(json.dumps(content))
    gap = PreTrainedTokenizerFast(tokenizer_object=backend, **names)
    with_gap = ModelPair(pair.safe, pair.risky, pair.tokenizer, risky_tokenizer=gap)
    decoder = Decoder(with_gap, TokenSwap(words=WORDS))
    assert (len(gap), decoder.level.vocab_size) == (299, 300)
    results = decoder.generate(PROMPTS, max_new_tokens=3)
    assert all(2 not in result.token_ids and verify(result.ledger, with_gap) for result in results)
    (score,) = decoder.score("s", [[299, 2]])
    assert score.token_log_probs[0] > -math.inf == score.token_log_probs[1]
