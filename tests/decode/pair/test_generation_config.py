"""Settings in the generation_config of a model are followed, refused by name, or named."""

import shutil

import pytest
from byte_pairs import tiny_byte_pair
from tiny_models import tiny_llama, train_tokenizer

from anchored import Anchored, CustomGenerate, Decoder, ModelPair, SafeOnly, TokenSwap, verify
from anchored.decode.vllm.pair_description import DescribedPair, PairFacts

PROMPTS = ["the keeper of the lamp", "salt"]
FEW = 20
MOST = list(range(FEW, 320))
"""Tokens that are suppressed below: a text of others shows that they are."""


def suppressing(name: str = "safe", **said: object) -> ModelPair:
    """A pair of which one model's generation_config says so."""
    models = {"safe": tiny_llama(1), "risky": tiny_llama(2)}
    for field, value in said.items():
        setattr(models[name].generation_config, field, value)
    return ModelPair(*models.values(), train_tokenizer())


def remade(pair: ModelPair) -> ModelPair:
    """The pair of the same models as their configs are now."""
    return ModelPair(pair.safe, pair.risky, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)


@pytest.mark.parametrize(
    ("name", "said", "rule"),
    [
        ("safe", {"bad_words_ids": [[token] for token in MOST]}, Anchored(k=1.0)),
        ("risky", {"suppress_tokens": MOST}, SafeOnly()),
    ],
    ids=["safe", "risky"],
)
def test_tokens_that_either_model_suppresses_are_drawn_from_neither(name, said, rule):
    pair = suppressing(name, **said)
    results = Decoder(pair, rule).generate(PROMPTS, max_new_tokens=20, seed=5)
    assert all(token < FEW for result in results for token in result.token_ids)
    for result in results:
        assert result.ledger.header.level_settings["banned_token_ids"] == MOST
        assert result.ledger.is_within_bound and verify(result.ledger, pair).is_ok
        assert verify(result.ledger, suppressing()).failures[0].startswith("level settings are ")


def test_an_end_in_bad_words_ends_texts_and_a_suppressed_one_none():
    assert suppressing("safe", bad_words_ids=[[1], [7]]).banned_token_ids == [7]
    reasons = [
        {
            result.finish_reason
            for result in Decoder(pair, SafeOnly()).generate(["salt"] * 16, max_new_tokens=100)
        }
        for pair in (suppressing(), suppressing(suppress_tokens=[1]))
    ]
    assert reasons == [{"length", "stop_token"}, {"length"}]


def test_transformers_settings_may_suppress_what_the_pair_does():
    pair = suppressing("risky", suppress_tokens=MOST)
    decoder = Decoder(pair, Anchored(k=1.0))
    inputs = pair.tokenizer(PROMPTS[:1], return_tensors="pt")
    custom = CustomGenerate(decoder, seed=3)
    options = {"do_sample": True, "max_new_tokens": 6, "custom_generate": custom}
    ids = pair.risky.generate(**inputs, **options)[0].tolist()
    assert ids == inputs["input_ids"][0].tolist() + custom.generations[0].token_ids
    with pytest.raises(ValueError, match=r"not supported"):
        pair.risky.generate(**inputs, **options, suppress_tokens=[5])


REFUSED = {"begin_suppress_tokens": [5], "bad_words_ids": [[5], [6, 7]], "suppress_tokens": ["a"]}


@pytest.mark.parametrize(("field", "value"), REFUSED.items())
def test_bans_that_depend_on_the_place_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=rf"{field}.* in the risky model's generation_config"):
        suppressing("risky", **{field: value})


def test_at_byte_level_special_tokens_may_be_suppressed_and_text_may_not(monkeypatch):
    pair = tiny_byte_pair()
    for name, model in pair.models.items():
        stops = pair.stop_tokens_of(name)
        monkeypatch.setattr(model.generation_config, "suppress_tokens", stops)
    endless = remade(pair)
    (result,) = Decoder(endless, SafeOnly(), level="byte").generate("salt", max_new_bytes=40)
    assert result.finish_reason == "length" and verify(result.ledger, endless).is_ok
    assert not verify(result.ledger, pair).is_ok
    text = pair.risky_tokenizer("a", add_special_tokens=False)["input_ids"][0]
    monkeypatch.setattr(pair.risky.generation_config, "suppress_tokens", [text])
    with pytest.raises(ValueError, match=f"the risky .* cannot suppress token {text}, which is"):
        Decoder(remade(pair), Anchored(k=1.0))


def test_in_the_risky_models_tokens_both_models_suppress_theirs(monkeypatch):
    pair = tiny_byte_pair()
    safe = pair.tokenizer("the o", add_special_tokens=False)["input_ids"]
    risky = pair.risky_tokenizer("a e", add_special_tokens=False)["input_ids"]
    for model, tokens in zip(pair.models.values(), (safe, risky), strict=True):
        monkeypatch.setattr(model.generation_config, "suppress_tokens", tokens)
    decoder = Decoder(remade(pair), TokenSwap())
    results = decoder.generate(PROMPTS, max_new_tokens=30, num_return_sequences=4)
    assert not {*risky} & {token for result in results for token in result.token_ids}
    suppressed = {"safe": sorted(safe), "risky": sorted(risky)}
    assert decoder.level.settings()["suppressed_token_ids"] == suppressed


def test_inside_vllm_they_are_banned_and_prompts_may_hold_them(pair_folders, tmp_path):
    folder = shutil.copytree(pair_folders[0], tmp_path / "risky")
    (folder / "generation_config.json").write_text('{"suppress_tokens": [7, 400]}')
    facts = PairFacts.of(DescribedPair.of(pair_folders[0], folder, allow_quantized_safe=False))
    assert (facts.banned_token_ids, facts.missing_token_ids) == ([7], [])


def test_what_is_not_followed_is_named_once(caplog):
    followed = {"temperature": 0.7, "do_sample": True, "suppress_tokens": [7], "max_length": 9}
    neutral = {"no_repeat_ngram_size": 0, "num_beams": 1, "output_scores": True}
    suppressing("risky", **followed, **neutral)
    assert not caplog.messages
    suppressing("safe", top_p=0.9, no_repeat_ngram_size=3)
    assert caplog.messages == [
        "the safe model's generation_config is not followed in no_repeat_ngram_size=3, "
        "top_p=0.9: the options of a call decide"
    ]
