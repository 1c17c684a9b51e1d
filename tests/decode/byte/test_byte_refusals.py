"""What byte level refuses, in one line each."""

import pytest

from anchored import Anchored, ByteSettings, Decoder, ModelPair


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty: give at least one character or one byte"),
        ([300], r"bytes must be in \[0, 256\), got 300"),
        ([0xFF], "not the beginning of a UTF-8 text"),
        ("salt " * 60, r"the prompt has \d+ tokens of the safe model; .*context of 256"),
    ],
)
def test_bad_prompts_are_refused_in_one_line(pair, prompt, message):
    with pytest.raises(ValueError, match=message):
        Decoder(pair, Anchored(k=1.0)).generate(prompt, max_new_bytes=200)


def test_what_a_level_cannot_do_is_refused_in_one_line(pair):
    one = ModelPair(pair.safe, pair.safe, pair.tokenizer)
    with pytest.raises(ValueError, match=r'different tokenizers \(320 and 300 tokens\): .*"byte"'):
        Decoder(pair, Anchored(k=1.0), level="token")
    with pytest.raises(ValueError, match='level must be "auto", "token" or "byte", got \'char\''):
        Decoder(pair, Anchored(k=1.0), level="char")
    with pytest.raises(ValueError, match='max_new_bytes needs level="byte"'):
        Decoder(one, Anchored(k=1.0)).generate("salt", max_new_bytes=5)
    with pytest.raises(ValueError, match="max_new_bytes must be >= 1, got 0"):
        Decoder(pair, Anchored(k=1.0)).generate("salt", max_new_bytes=0)
    with pytest.raises(ValueError, match='a prompt cache need level="byte"'):
        Decoder(one, Anchored(k=1.0), byte_settings=ByteSettings())
    with pytest.raises(ValueError, match="speculate=4 cannot run here: its level is the byte"):
        Decoder(pair, Anchored(k=1.0), speculate=4)
    with pytest.raises(ValueError, match="mode must be one of masked, raw, got 'all'"):
        ByteSettings(mode="all")
    with pytest.raises(ValueError, match=r"tau must be in \[0, 1\), got 2"):
        ByteSettings(tau=2)
