"""On a device without float64 models compute there, and all that follows a forward is the CPU's."""

import copy
import logging

import pytest
import torch
from byte_pairs import tiny_byte_pair
from fake_cuda import fake_cuda
from model_zoo import zoo_model
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, TokenSwap, verify
from anchored.kernels.devices import work_device
from anchored.kernels.token_log_probs import hidden_token_log_probs, token_log_probs

DEVICE = torch.device("cuda", 0)
VOCAB_SIZE = 40
ANCHORED = Anchored(k=0.5)
PROMPTS = [[5, 6, 7], [8, 9]]


@pytest.fixture
def device():
    with fake_cuda(num_processors=1, has_float64=False) as device:
        yield device


def neox(seed: int):
    return zoo_model("gpt_neox", seed, vocab_size=VOCAB_SIZE)


def openai(seed: int):
    return zoo_model("openai-gpt", seed, vocab_size=VOCAB_SIZE)


def llama(seed: int):
    return tiny_llama(seed, vocab_size=VOCAB_SIZE, eos_token_id=None).float()


def decoder_on(place: str, build, rule=ANCHORED, **settings) -> Decoder:
    pair = ModelPair(*(build(seed).to(place) for seed in (1, 2)), word_tokenizer(VOCAB_SIZE))
    return Decoder(pair, rule, **settings)


def assert_equal(results: list, expected: list) -> None:
    for ours, plain in zip(results, expected, strict=True):
        assert not ours.error and ours.token_ids == plain.token_ids
        assert ours.ledger.certified == plain.ledger.certified
        assert ours.ledger.spent == pytest.approx(plain.ledger.spent, abs=1e-5)


def test_work_stays_where_float64_is():
    assert work_device(torch.device("cpu")) == torch.device("cpu")
    with fake_cuda():
        assert work_device(DEVICE) == DEVICE


@pytest.mark.usefixtures("device")
def test_what_leaves_a_device_without_float64_is_the_same_on_the_cpu():
    assert work_device(DEVICE) == torch.device("cpu")
    rows = torch.randn(3, VOCAB_SIZE).bfloat16()
    hidden, weight, token_ids = torch.randn(3, 8), torch.randn(VOCAB_SIZE, 8), torch.arange(3)
    places = (torch.device("cpu"), DEVICE)
    for log_probs in (
        [token_log_probs(rows.to(place), token_ids.to(place)) for place in places],
        [
            hidden_token_log_probs(hidden.to(place), weight.to(place), token_ids.to(place))
            for place in places
        ],
    ):
        assert torch.equal(*log_probs) and log_probs[1].dtype == torch.float64


def test_an_error_that_does_not_name_float64_is_raised(monkeypatch):
    def failing(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch, "ones", failing)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        work_device(torch.device("cuda", 3))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("build", "rule"),
    [
        (llama, ANCHORED),
        (llama, Anchored(k=0.5, divergence="max")),
        (llama, SafeOnly()),
        (neox, RiskyOnly()),
        (neox, ANCHORED),
        (openai, ANCHORED),
    ],
    ids=["rows", "max", "safe", "risky", "batches", "one by one"],
)
def test_texts_scores_and_proofs_are_those_of_the_cpu(build, rule, caplog):
    settings = {"max_new_tokens": 4, "temperature": 0.7, "top_p": 0.9, "seed": [3, 4]}
    expected = decoder_on("cpu", build, rule).generate(PROMPTS, **settings)
    with caplog.at_level(logging.WARNING):
        decoder = decoder_on("cuda", build, rule)
        results = decoder.generate(PROMPTS, **settings)
    assert_equal(results, expected)
    assert not [line for line in caplog.messages if "Triton" in line]
    assert verify(results[0].ledger, decoder.pair).is_ok
    scores = [
        scorer.score(PROMPTS, PROMPTS) for scorer in (decoder, decoder_on("cpu", build, rule))
    ]
    for ours, plain in zip(*scores, strict=True):
        assert ours.log_prob == pytest.approx(plain.log_prob, abs=1e-4)


@pytest.mark.usefixtures("device")
def test_drafts_streams_and_truncations_too():
    for settings in ({"speculate": 3}, {"batch_size": 1}):
        decoders = [decoder_on(place, llama, **settings) for place in ("cpu", "cuda")]
        results = [decoder.generate(PROMPTS, max_new_tokens=5, min_p=0.05) for decoder in decoders]
        assert_equal(results[1], results[0])
        texts = [
            "".join(p.text for p in decoder.stream([5, 6], max_new_tokens=4))
            for decoder in decoders
        ]
        assert texts[0] == texts[1]


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("place", [("cuda", "cpu"), ("cpu", "cuda")], ids=str)
def test_one_of_the_models_may_be_on_such_a_device(place):
    models = (llama(seed).to(device_name) for seed, device_name in zip((1, 2), place, strict=True))
    decoder = Decoder(ModelPair(*models, word_tokenizer(VOCAB_SIZE)), Anchored(k=0.5))
    plain = decoder_on("cpu", llama).generate(PROMPTS, max_new_tokens=4)
    assert_equal(decoder.generate(PROMPTS, max_new_tokens=4), plain)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "rule", [Anchored(k=1.0), TokenSwap(words=["the", "a"])], ids=["bytes", "swap"]
)
def test_two_tokenizers_too(rule):
    pairs = []
    for place in ("cpu", "cuda"):
        pair = tiny_byte_pair()
        models = [copy.deepcopy(model).float().to(place) for model in pair.models.values()]
        pairs.append(ModelPair(*models, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer))
    results = [Decoder(pair, rule).generate("the keeper", max_new_tokens=3) for pair in pairs]
    assert_equal(results[1], results[0])
