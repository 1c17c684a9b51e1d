"""Numbers, texts and configs in every form that users have: taken for what they are, or refused."""

import copy
import inspect
import logging
import re

import numpy as np
import pytest
import torch
from tiny_models import tiny_llama
from transformers import BatchEncoding, GenerationConfig

from anchored import (
    RCAD,
    Anchored,
    ByteSettings,
    ColdStart,
    CPFuse,
    Decoder,
    GlobalSwitch,
    Ledger,
    MemFree,
    ModelPair,
    Pathwise,
    RiskyOnly,
    System,
    TokenSwap,
    verify,
)
from anchored.decode.settings import HINTS, SamplingConfig

PROMPT = "the keeper of the lamp"
PASSAGE = "salt and rain"


@pytest.fixture(scope="module")
def decoder(pair) -> Decoder:
    return Decoder(pair, Anchored(k=1.0))


def tokens(decoder: Decoder, prompts, **settings) -> list[list[int]]:
    return [result.token_ids for result in decoder.generate(prompts, max_new_tokens=6, **settings)]


HALF = [np.float64(0.5), np.float32(0.5), np.float16(0.5), torch.tensor(0.5), np.array(0.5)]


def sampling(**changes):
    return {"rule": lambda: Anchored(k=1.0), **changes}


RECORDED = [
    *(sampling(**{name: value}) for value in HALF for name in ("temperature", "top_p", "min_p")),
    sampling(repetition_penalty=np.float32(1.2), temperature=1),
    sampling(top_k=np.int64(10)),
    sampling(k=np.float32(0.3), seed=np.int64(3), max_new_tokens=np.int32(4)),
    sampling(prompts=[PROMPT, "salt"], seed=np.array([3, 4]), k=[np.float64(1.5), 0.25]),
    sampling(prompts=[[np.int64(5), np.int64(7)]]),
    sampling(prompts=[np.int64(5), np.int64(7)]),
    sampling(prompts=torch.tensor([[5, 7]])),
    sampling(num_return_sequences=torch.tensor(2)),
    {"rule": lambda: Anchored(k=np.float32(0.5), debt_window=np.int64(3))},
    {"rule": lambda: Anchored(K=torch.tensor(3.0), debt_window=torch.tensor(3))},
    {"rule": lambda: Pathwise(k=np.float32(0.5), bank=np.int64(3)), "k": torch.tensor(0.25)},
    {"rule": lambda: RCAD(alpha=np.float32(0.5)), "passages": PASSAGE},
    {"rule": lambda: RCAD(alpha=1), "passages": [PASSAGE]},
    {"rule": lambda: CPFuse(grid_size=np.int64(4))},
    {"rule": lambda: ColdStart(k=np.float32(0.2))},
    {"rule": lambda: GlobalSwitch(K=np.int64(2))},
    {"rule": lambda: MemFree(passages=(PASSAGE,), n=np.int64(3))},
    {"rule": lambda: TokenSwap(words=("the", "of"))},
    {"rule": lambda: RiskyOnly(compared=np.bool_(False))},
]


def test_none_is_the_default_of_every_value(pair):
    names = ("temperature", "repetition_penalty", "top_k", "top_p", "min_p", "seed", "stop", "k")
    names = (*names, "max_new_tokens", "max_new_bytes", "num_return_sequences", "generation_config")
    left_out = Decoder(pair, Anchored(k=1.0))
    none = Decoder(pair, Anchored(k=1.0), level=None, batch_size=None, speculate=None)
    assert left_out.batch_size == none.batch_size
    given = dict.fromkeys(names)
    given["max_new_tokens"] = 4
    expected = left_out.generate(PROMPT, max_new_tokens=4)[0].ledger
    assert none.generate(PROMPT, **given)[0].ledger == expected
    del given["num_return_sequences"]
    stream = none.stream(PROMPT, **given)
    assert [piece.token_id for piece in stream] == [step.token_id for step in expected.steps]
    scored = dict.fromkeys((*names[:5], "horizon", "k"))
    assert none.score(PROMPT, " rain", **scored) == left_out.score(PROMPT, " rain")
    each = none.generate([PROMPT] * 2, max_new_tokens=4, seed=[None, 3])
    assert [result.ledger.header.seed for result in each] == [0, 3]


@pytest.mark.parametrize("call", ["generate", "generate_each", "stream", "score"])
def test_a_name_of_another_library_is_answered_by_what_to_write(decoder, call):
    method = getattr(decoder, call)
    given = ["a", "b"] if call == "score" else []
    for name in HINTS.keys() - inspect.signature(method).parameters:
        hint = f"unknown sampling setting '{name}': {re.escape(HINTS[name])}"
        with pytest.raises(ValueError, match=hint):
            method(*given, **{name: 1})


def test_what_has_nothing_to_begin_with_says_so_and_an_empty_list_has_no_results(decoder):
    for call in (decoder.generate, decoder.generate_each):
        with pytest.raises(ValueError, match="give prompts, messages or continue_from"):
            call()
    with pytest.raises(ValueError, match="a stream is one continuation of one prompt, got 0"):
        decoder.stream()
    with pytest.raises(ValueError, match="a stream is one continuation of one prompt, got 2"):
        decoder.stream(["a", "b"])  # though 200 new tokens would not fit either
    with pytest.raises(ValueError, match="a stream is one continuation of one prompt, got 2"):
        decoder.stream(
            "a", generation_config=GenerationConfig(do_sample=True, num_return_sequences=2)
        )
    assert decoder.generate([]) == []


@pytest.mark.sampled(5)
@pytest.mark.parametrize("given", RECORDED, ids=range(len(RECORDED)))
def test_what_is_generated_verifies_before_and_after_it_is_saved(pair, tmp_path, given):
    settings = {"prompts": PROMPT, "max_new_tokens": 4, **given}
    for result in Decoder(pair, settings.pop("rule")()).generate(**settings):
        assert verify(result.ledger, pair).is_ok, verify(result.ledger, pair)
        result.ledger.save(tmp_path / "ledger.jsonl")
        assert verify(Ledger.load(tmp_path / "ledger.jsonl"), pair).is_ok


def config_of(**fields):
    return {"generation_config": GenerationConfig(**fields)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": True}, "temperature must be a number, got True"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"top_k": True}, "top_k must be a whole number, got True"),
        ({"top_k": 2.5}, "top_k must be a whole number, got 2.5"),
        ({"prompts": [True, 5]}, "a token id must be a whole number, got True"),
        ({"prompts": [[True, 5]]}, "a token id must be a whole number, got True"),
        ({"prompts": [5.0, 7.0]}, "a token id must be a whole number, got 5.0"),
        ({"prompts": torch.tensor([[0.5]])}, "a token id must be a whole number, got 0.5"),
        ({"prompts": torch.tensor(5)}, "prompts must be a text, a list of token ids or a list of"),
        ({"prompts": torch.zeros(1, 1, 2)}, "prompt must be a text or a list of token ids, got"),
        ({"prompts": {"input_ids": [5]}}, "prompts must not be a dict: pass its token ids"),
        ({"prompts": {"a"}}, "prompts must not be a set: its texts have no order"),
        ({"prompts": {"a": 1}.keys()}, "prompts must not be a dict_keys"),
        ({"prompts": [{"text": "a"}]}, "prompt must be a text or a list of token ids, got dict"),
        (
            {"prompts": [[{"role": "user", "content": "a"}]]},
            "got list; give conversations as messages=",
        ),
        ({"prompts": b"salt"}, "prompts must be .*, got b'salt'"),  # bytes are no token ids
        ({"prompts": [b"salt"]}, "prompt must be a text or a list of token ids, got bytes"),
        ({"prompts": [{"role": "user", "content": "a"}]}, "got dict; .* messages="),
        ({"prompts": 5}, "prompts must be a text, a list of token ids or a list of these, got 5"),
        ({"prompts": "a \ud800 b"}, "the prompt cannot be written as UTF-8: .* surrogate"),
        ({"seed": True}, "seed must be a whole number, got True"),
        ({"k": True}, "k must be a number, got True"),
        ({"num_return_sequences": True}, "num_return_sequences must be a whole number"),
        ({"stop": [5]}, r"stop\[0\] must be text, got 5"),
        ({"stop": 5}, "stop must be a list of texts, got 5"),
        (
            {"prompts": (), "messages": 5},
            "messages must be a list of roles and contents, got 5",
        ),
        ({"prompts": (), "continue_from": "a.jsonl"}, "continue_from must be .*, got 'a.jsonl'"),
        ({"do_sample": True}, "'do_sample': .*temperature=0 .*most likely"),
        ({"max_length": 20}, "'max_length': .*max_new_tokens"),
        ({"max_tokens": 20}, "'max_tokens': .*max_new_tokens"),
        ({"stop_strings": ["a"]}, "'stop_strings': .*stop="),
        ({"n": 2}, "'n': .*num_return_sequences"),
        ({"input_ids": [5]}, r"'input_ids': give what .* generate\(tokenizer\(text\)\)"),
        ({"prompts": None}, "give prompts, messages or continue_from"),
        ({"num_beams": 4}, "'num_beams': .* num_return_sequences"),
        ({"num_beams": None}, "'num_beams': .* num_return_sequences"),
        ({"stop_token_ids": [5]}, "'stop_token_ids': .* end of text .* stop="),
        ({"streamer": print}, r"'streamer': call stream\(prompt\)"),
        ({"logits_processor": []}, "'logits_processor': what chooses tokens is a rule or one of"),
        ({"K": 5}, "'K': it is the rule's"),
        ({"num_return_sequences": 0}, "num_return_sequences must be >= 1, got 0"),
        ({"heat": 2}, "unknown sampling setting 'heat': allowed are temperature"),
        (config_of(num_beams=4), "generation_config: num_beams=4 is not supported"),
        (config_of(typical_p=0.5), "generation_config: typical_p=0.5 is not supported"),
        (config_of(max_length=30), "generation_config: max_length=30 is not supported"),
        (config_of(eos_token_id=7), "generation_config: eos_token_id=7 .* end of text"),
        (
            {**config_of(temperature=0.5), "temperature": 0.7},
            "temperature .* generation_config, not both",
        ),
        (config_of(max_new_tokens=5), "max_new_tokens .*, not both"),
        ({**config_of(stop_strings="a"), "stop": "b"}, "stop .* generation_config, not both"),
        ({"generation_config": {}}, "generation_config must be a GenerationConfig, got dict"),
    ],
    ids=str,
)
def test_what_is_nothing_of_the_kind_is_refused_before_anything_runs(
    decoder, pair, settings, message
):
    given = {"prompts": PROMPT, "max_new_tokens": 2, **settings}
    for each in (decoder, Decoder(pair, decoder.rule, level="byte")):
        with pytest.raises(ValueError, match=message):
            each.generate_each(**given)
    with pytest.raises(ValueError, match=r"continuations must be a text, .* got b'rain'"):
        decoder.score("salt", b"rain")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Anchored(), "give either k or K"),
        (
            lambda: Anchored(k=1.0, budget=10),
            "budget must be one of adaptive, global, fixed, got 10",
        ),
        (lambda: Anchored(k=True), "k must be a number, got True"),
        (lambda: Anchored(k=[1.0]), r"k must be a number, got \[1.0\]"),
        (lambda: Anchored(k=-1.0), r"k must be in \[0, 1048576\] nats, got -1.0"),
        (lambda: Anchored(k=float("nan")), r"k must be in .* got nan"),
        (lambda: Anchored(K=2.0**20 + 1), r"K must be in .* nats, got 1048577.0"),
        (
            lambda: Anchored(k=1.0, divergence="js"),
            "divergence must be one of kl, max, got 'js'",
        ),
        (lambda: Anchored(k=1.0, debt_window=0), "debt_window must be >= 1, got 0"),
        (lambda: Anchored(k=1.0, debt_window=2.5), "debt_window must be a whole number, got 2.5"),
        (lambda: Anchored(k=1.0, debt_window=True), "debt_window must be a whole number"),
        (lambda: Pathwise(k=True), "k must be a number, got True"),
        (lambda: Pathwise(bank="20"), "bank must be a number, got '20'"),
        (lambda: Pathwise(bank=2.0**21), r"bank must be in \[0, 1048576\] nats, got 2097152.0"),
        (lambda: Pathwise(debt_window=0), "debt_window must be >= 1, got 0"),
        (lambda: ColdStart(k=-1.0), "k must be in"),
        (lambda: GlobalSwitch(K=float("nan")), "K must be in"),
        (lambda: RCAD(alpha=-0.1), "alpha must be finite and >= 0, got -0.1"),
        (lambda: RCAD(alpha="nan"), "alpha must be a number, got 'nan'"),
        (lambda: RCAD(alpha=float("nan")), "alpha must be finite and >= 0, got nan"),
        (lambda: System(prompt=5), "prompt must be text, got 5"),
        (lambda: System(prompt=None), "prompt must be text, got None"),
        (lambda: System(prompt="\ud800"), "prompt cannot be written as UTF-8"),
        (lambda: MemFree(), "MemFree needs passages, a corpus or both"),
        (lambda: MemFree(passages="a text"), "passages must be a list of texts, got 'a text'"),
        (lambda: MemFree(passages=[1]), r"passages\[0\] must be text, got 1"),
        (lambda: ByteSettings(prefetch=2.5), "prefetch must be a whole number, got 2.5"),
        (lambda: MemFree(corpus=5), "corpus must be text, got 5"),
        (lambda: MemFree(corpus="none.jsonl"), "corpus must be a file of texts, there is none at"),
        (lambda: MemFree(passages=[], corpus_sha256="0"), "corpus_sha256 is that of a corpus"),
        (lambda: MemFree(passages=["a"], n=0), r"n must be in \[1, 1000\], got 0"),
        (lambda: MemFree(passages=["a"], n=99999999999), r"n must be in \[1, 1000\], got 999"),
        (lambda: MemFree(passages=["a"], n=True), "n must be a whole number, got True"),
        (lambda: CPFuse(grid_size=1000000), r"grid_size must be in \[2, 100\], got 1000000"),
        (lambda: CPFuse(warping="never"), "warping must be one of after, before, got 'never'"),
        (lambda: TokenSwap(words=[]), "words must be a list of at least one word"),
        (lambda: TokenSwap(words=[5]), r"words\[0\] must be text, got 5"),
        (lambda: RiskyOnly(compared="maybe"), "compared must be true or false, got 'maybe'"),
        (lambda: RCAD(compared=1), "compared must be true or false, got 1"),
        (lambda: SamplingConfig(temperature=torch.ones(2)), "temperature must be a number"),
    ],
)
def test_a_rule_refuses_what_its_ledger_could_not_hold(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pair: Decoder(pair, Anchored), r"is the class Anchored: give a rule, Anchored\("),
        (lambda pair: Decoder(pair, "anchored"), r"must be a rule such as .*, got 'anchored'"),
        (lambda pair: Decoder(Anchored(k=1), pair), "ModelPair, got Anchored: .*Decoder\\(pair, r"),
        (lambda pair: Decoder(pair, Anchored(k=1), batch_size=2.5), "must be a whole number"),
        (lambda pair: Decoder(pair, Anchored(k=1), batch_size=True), "must be a whole number"),
        (lambda pair: Decoder(pair, Anchored(k=1), batch_size=0), "batch_size must be >= 1, got 0"),
    ],
)
def test_a_decoder_says_what_it_is_made_of(pair, make, message):
    with pytest.raises(ValueError, match=message):
        make(pair)


def test_a_pair_says_how_models_in_memory_and_settings_of_transformers_are_given(pair_folders):
    with pytest.raises(TypeError, match=r"ModelPair\(safe, risky, tokenizer\)"):
        ModelPair.from_pretrained(tiny_llama(1), tiny_llama(2))
    for name, spelling in {
        "torch_dtype": "dtype",
        "device_map": r"risky_options=LoadOptions\(device_map=",
        "revision": r"safe_options=LoadOptions\(revision=",
        "quantization_config": "risky_quantization",
        "heat": "unknown",
    }.items():
        with pytest.raises(TypeError, match=f"{name}.*{spelling}"):
            ModelPair.from_pretrained(*pair_folders, **{name: "auto"})


def test_ids_are_prompts_in_whatever_a_tokenizer_returns_them(decoder, pair):
    texts = [PROMPT, "salt"]
    expected, (first, _) = tokens(decoder, texts), texts
    tokenizer = copy.deepcopy(pair.tokenizer)
    tokenizer.pad_token = tokenizer.eos_token
    for kind in (None, "pt", "np"):
        padded = tokenizer(texts, return_tensors=kind, padding=kind is not None)
        assert isinstance(padded, BatchEncoding) and tokens(decoder, padded) == expected
        one = tokenizer(first, return_tensors=kind)
        assert tokens(decoder, one) == tokens(decoder, one["input_ids"]) == expected[:1]
    ids = tokenizer(first)["input_ids"]
    for prompt in (torch.tensor(ids), np.array(ids), [torch.tensor(ids)], [np.array(ids)]):
        assert tokens(decoder, prompt) == expected[:1]
    (score,) = decoder.score(np.array(ids), torch.tensor(ids))
    assert score.token_ids == decoder.score(first, ids)[0].token_ids
    (result,) = decoder.generate(torch.tensor(ids), max_new_tokens=2)
    assert {type(token) for token in result.prompt} == {int}


def test_a_generation_config_is_what_its_fields_say(decoder):
    config = GenerationConfig(
        do_sample=True,
        temperature=0.9,
        top_k=20,
        top_p=0.9,
        min_p=0.01,
        repetition_penalty=1.2,
        max_new_tokens=6,
        num_return_sequences=2,
    )
    settings = {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    expected = decoder.generate(
        PROMPT, max_new_tokens=6, repetition_penalty=1.2, num_return_sequences=2, **settings
    )
    given = decoder.generate(PROMPT, generation_config=config)
    assert [result.ledger.header for result in given] == [r.ledger.header for r in expected]
    assert [result.token_ids for result in given] == [result.token_ids for result in expected]
    stop = expected[0].text[3:5]
    config.stop_strings = [stop]
    (stopped, *_) = decoder.generate(PROMPT, generation_config=config)
    assert stopped.finish_reason == "stop_string" and stop not in stopped.text
    stream = decoder.stream(PROMPT, generation_config=GenerationConfig(max_new_tokens=2))
    assert len(list(stream)) == 2 == stream.ledger.header.horizon


def test_a_generation_config_may_be_greedy_or_a_model_s(decoder, pair, caplog):
    config = GenerationConfig(do_sample=False, max_new_tokens=3)
    with caplog.at_level(logging.WARNING):
        (result,) = decoder.generate(PROMPT, generation_config=config)
    assert result.ledger.header.sampling["temperature"] == 0.0 and not result.ledger.certified
    config = pair.risky.generation_config
    (result,) = decoder.generate(PROMPT, generation_config=config, max_new_tokens=2)
    assert result.ledger.header.sampling["temperature"] == SamplingConfig().temperature


def test_a_text_that_no_tokenizer_reads_fails_alone(decoder, pair):
    texts = [PROMPT, "a \ud800 b", "salt"]
    results = decoder.generate(texts, max_new_tokens=4)
    alone = [decoder.generate(text, max_new_tokens=4)[0] for text in (PROMPT, "salt")]
    assert [r.token_ids for r in results] == [alone[0].token_ids, [], alone[1].token_ids]
    (error,) = [result.error for result in results if result.error]
    assert error.startswith("request 1: the prompt cannot be written as UTF-8")
    assert results[1].finish_reason == "error" and not results[1].ledger.certified
    scores = decoder.score(texts, ["a"] * 3)
    assert [bool(score.error) for score in scores] == [False, True, False]
    by_bytes = Decoder(pair, Anchored(k=1.0), level="byte").generate(texts, max_new_bytes=2)
    assert [bool(result.error) for result in by_bytes] == [False, True, False]


def test_a_passage_or_a_message_that_no_tokenizer_reads_fails_alone(pair):
    decoder = Decoder(pair, RCAD())
    results = decoder.generate([PROMPT, PROMPT], passages=["a", "\ud800"], max_new_tokens=2)
    assert [bool(result.error) for result in results] == [False, True]
    with pytest.raises(ValueError, match="the passage cannot be written as UTF-8"):
        decoder.generate(PROMPT, passages="\ud800", max_new_tokens=2)
    with pytest.raises(ValueError, match="the passage must be text, got 5"):
        decoder.generate(PROMPT, passages=5, max_new_tokens=2)


def test_nothing_continued_has_the_probability_one(pair, decoder):
    for level in ("token", "byte"):
        scored = Decoder(pair, Anchored(k=1.0), level=level)
        empty, some = scored.score([PROMPT, "salt"], ["", " and"])
        assert empty.log_prob == 0.0 == empty.spend and not empty.error
        assert empty.token_log_probs == [] and empty.is_greedy
        (alone,) = scored.score("salt", " and", horizon=empty.horizon)
        assert some.log_prob == pytest.approx(alone.log_prob, abs=1e-6)
        (single,) = scored.score(PROMPT, "")
        assert single.log_prob == 0.0 and single.debt == pytest.approx(empty.debt, abs=1e-6)
