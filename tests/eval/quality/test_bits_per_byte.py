"""Bits per byte against a hand computation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anchored import Decoder, SafeOnly
from anchored.eval.quality.bits_per_byte import Utility, excerpts, utility

TEXTS = [
    "the keeper of the lamp wrote every wave into a ledger of salt and rain",
    "Nine tides ago, the harbour bell rang twice; nobody had pulled its rope.",
]
SNOW = "a\u2603b\u2603c\u2603d\u2603e"
PICTURES = "\U0001f642 the keeper \U0001f6a2\U0001f30a"  # of 4 bytes among words


def test_bits_per_byte_of_the_safe_model_are_its_cross_entropy(pair):
    (passage,) = excerpts(pair.tokenizer, TEXTS[:1], num_prompt_tokens=4, num_tokens=6)
    ids = passage.prompt_token_ids + passage.token_ids
    with torch.inference_mode():
        log_probs = pair.safe(torch.tensor([ids])).logits.log_softmax(-1)[0]
    nats = -sum(log_probs[i - 1, ids[i]].item() for i in range(4, len(ids)))
    result = utility(Decoder(pair, SafeOnly()), [passage])
    num_bytes = len(pair.tokenizer.decode(passage.token_ids).encode())
    assert result.bits_per_byte == pytest.approx(nats / math.log(2) / num_bytes, abs=1e-5)


@pytest.mark.parametrize("text", [SNOW, PICTURES])
def test_excerpts_are_whole_characters_and_count_their_bytes(pair, text):
    cuts = [
        passage
        for start in range(2, 9)
        for length in range(1, 12)
        for passage in excerpts(pair.tokenizer, [text], num_prompt_tokens=start, num_tokens=length)
    ]
    assert len(cuts) > 30
    for passage in cuts:
        prompt, target = (
            pair.tokenizer.decode(ids) for ids in (passage.prompt_token_ids, passage.token_ids)
        )
        assert text.startswith((prompt + target).removeprefix(pair.tokenizer.bos_token))
        assert passage.num_bytes == len(target.encode())


@given(st.lists(st.tuples(st.floats(0, 9), st.integers(1, 9)), min_size=2, max_size=9))
def test_gain_over_itself_is_zero_without_error(rows):
    result = Utility(nats=[nats for nats, _ in rows], num_bytes=[size for _, size in rows])
    assert result.gain_over(result) == (0.0, 0.0)
    with pytest.raises(ValueError, match="same excerpts"):
        result.gain_over(Utility(nats=[1.0], num_bytes=[2]))


def test_standard_error_is_that_of_the_mean_for_equal_sizes():
    result = Utility(nats=[1.0, 2.0, 3.0], num_bytes=[1, 1, 1])
    assert result.standard_error == pytest.approx(1 / math.sqrt(3) / math.log(2))


def test_excerpts_in_bytes_are_the_same_text(pair):
    """A prompt takes the rest of the character that it ends in."""
    (passage,) = excerpts(pair.tokenizer, [SNOW, "a"], num_prompt_tokens=3)
    # Begin of text, "a" and the first of a snowman's three bytes were asked for.
    assert pair.tokenizer.decode(passage.prompt_token_ids[1:]) == "a\u2603"
    decoder = Decoder(pair, SafeOnly(), level="byte")
    in_bytes = passage.in_symbols(pair.tokenizer, decoder.level)
    assert bytes(in_bytes.prompt_token_ids + in_bytes.token_ids) == SNOW.encode()
    assert len(in_bytes.token_ids) == in_bytes.num_bytes
    (score,) = decoder.score([in_bytes.prompt_token_ids], [in_bytes.token_ids])
    assert utility(decoder, [in_bytes]).nats == [-score.log_prob]
