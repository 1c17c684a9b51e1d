"""A stop that is a special token: no text holds it, so the text ends where the token is drawn."""

import copy

import pytest
from tiny_models import tiny_llama, train_tokenizer

from anchored import Anchored, Decoder, ModelPair, verify

TURN, SETTINGS = 2, {"max_new_tokens": 40, "temperature": 1.0}
PROMPTS = ["the keeper of the lamp", "salt"]


def likely_turns(seed: int, **changes):
    """A model that is likely to draw <|turn|> every few tokens."""
    model = tiny_llama(seed, **changes)
    model.lm_head.weight.data[TURN] += 12 * model.lm_head.weight.data.abs().mean()
    return model


def renamed(name: str):
    """The tokenizer with another name of <|turn|>."""
    tokenizer = copy.deepcopy(train_tokenizer())
    text = tokenizer.backend_tokenizer.to_str().replace("<|turn|>", name)
    backend = type(tokenizer.backend_tokenizer).from_str(text)
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    return type(tokenizer)(tokenizer_object=backend, **names)


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return ModelPair(likely_turns(1), likely_turns(2), train_tokenizer())


def test_a_text_ends_at_the_special_token_that_stop_names(pair):
    decoder, stop = Decoder(pair, Anchored(k=1.0)), ["\x00never", "<|turn|>"]
    for prompt in PROMPTS:
        (whole,) = decoder.generate(prompt, **SETTINGS)
        (result,) = decoder.generate(prompt, stop=stop, **SETTINGS)
        end = whole.token_ids.index(TURN) + 1
        assert result.token_ids == whole.token_ids[:end] and end < 40
        assert result.finish_reason == "stop_string" and verify(result.ledger, pair).is_ok
        prompt_ids = pair.encode(prompt)
        assert pair.tokenizer.decode(prompt_ids[1:] + result.token_ids[:-1]) == prompt + result.text
        stream = decoder.stream(prompt, stop=stop, **SETTINGS)
        assert "".join(piece.text for piece in stream) == result.text


def test_either_model_s_name_of_a_shared_token_is_a_stop():
    tokenizers = train_tokenizer(), renamed("<|eot|>")
    pair = ModelPair(likely_turns(1), likely_turns(2), tokenizers[0], risky_tokenizer=tokenizers[1])
    decoder = Decoder(pair, Anchored(k=1.0))
    (ours,) = decoder.generate(PROMPTS[0], stop="<|turn|>", **SETTINGS)
    (theirs,) = decoder.generate(PROMPTS[0], stop="<|eot|>", **SETTINGS)
    assert ours.finish_reason == theirs.finish_reason == "stop_string"
    assert ours.token_ids == theirs.token_ids


def test_a_special_token_among_other_text_is_refused_in_one_line(pair):
    decoder = Decoder(pair, Anchored(k=1.0))
    with pytest.raises(ValueError, match=r"stop .* holds the special token .*: give '<\|") as error:
        decoder.generate("salt", stop=["a", "\n<|turn|>"])
    assert "\n" not in str(error.value)
