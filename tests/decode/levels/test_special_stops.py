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
    return type(tokenizer)(
        tokenizer_object=type(tokenizer.backend_tokenizer).from_str(text),
        bos_token="<|begin|>",
        eos_token="<|end|>",
    )


@pytest.fixture(scope="module")
def pair() -> ModelPair:
    return ModelPair(likely_turns(1), likely_turns(2), train_tokenizer())


@pytest.mark.parametrize("stop", ["<|turn|>", ["\x00never", "<|turn|>"]], ids=str)
def test_a_text_ends_at_the_special_token_that_stop_names(pair, stop):
    decoder = Decoder(pair, Anchored(k=1.0))
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


def test_the_end_of_a_model_s_texts_is_an_end_as_ever(pair):
    for level, length in (("token", {"max_new_tokens": 8}), ("byte", {"max_new_bytes": 8})):
        decoder = Decoder(pair, Anchored(k=1.0), level=level)
        plain = decoder.generate(PROMPTS, **length)
        stopped = decoder.generate(PROMPTS, stop="<|end|>", **length)
        assert [result.token_ids for result in stopped] == [result.token_ids for result in plain]


def test_a_special_token_that_is_never_drawn_is_text_like_any_other(pair):
    """At byte level no special token is drawn, and at token level none that one tokenizer lacks."""
    by_bytes = Decoder(pair, Anchored(k=1.0), level="byte")
    (plain,) = by_bytes.generate("salt", max_new_bytes=6)
    (result,) = by_bytes.generate("salt", stop=["<|turn|>", "a <|turn|>"], max_new_bytes=6)
    assert result.token_ids == plain.token_ids
    more = copy.deepcopy(train_tokenizer())
    more.add_special_tokens({"additional_special_tokens": ["<|extra|>"]})
    models = (likely_turns(seed, vocab_size=321) for seed in (1, 2))
    other = ModelPair(*models, train_tokenizer(), risky_tokenizer=more)
    (result,) = Decoder(other, Anchored(k=1.0)).generate(
        "salt", stop="a <|extra|>", max_new_tokens=4
    )
    assert result.finish_reason == "length"


@pytest.mark.parametrize("stop", ["\n<|turn|>", "<|end|><|turn|>"])
def test_a_special_token_among_other_text_is_refused_in_one_line(pair, stop):
    decoder = Decoder(pair, Anchored(k=1.0))
    for call in (decoder.generate, decoder.generate_each, decoder.stream):
        with pytest.raises(ValueError, match=r"stop .* holds the special token .*: give '<\|") as e:
            call("salt", stop=["a", stop])
        assert "\n" not in str(e.value)
