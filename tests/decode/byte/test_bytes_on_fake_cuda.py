"""Byte level on a CUDA device that is not there: bytes as on the CPU, one wait for each."""

import pytest
from byte_pairs import PROMPTS, tiny_byte_pair
from fake_cuda import fake_cuda

from anchored import Anchored, ByteSettings, Decoder, ModelPair
from anchored.decode.byte.device_stream import DeviceByteStream
from anchored.decode.decoder import choose_level
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.settings import SamplingConfig
from anchored.kernels import interval_sums
from anchored.kernels.gpu import interval_sums as launched

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCE_NATS = 2e-5
"""Float64 models; both projections use their budgets up to 1e-5."""


@pytest.fixture
def device():
    with fake_cuda(num_processors=1) as device:
        yield device


@pytest.fixture
def summed_by_torch(device, monkeypatch):
    """One program a symbol is much for the interpreter."""
    monkeypatch.setattr(launched, "launched_sums", device.as_kernel(interval_sums._defined))


def pair_on_device() -> ModelPair:
    pair = tiny_byte_pair()
    models = [model.to("cuda") for model in pair.models.values()]
    return ModelPair(*models, pair.tokenizer, risky_tokenizer=pair.risky_tokenizer)


def assert_bytes_of_the_cpu(rule, prompts, max_new_bytes, byte_settings=None) -> None:
    settings = {"max_new_bytes": max_new_bytes, "seed": list(range(len(prompts)))}
    expected, actual = (
        Decoder(pair, rule, level="byte", batch_size=2, byte_settings=byte_settings).generate(
            prompts, **settings
        )
        for pair in (tiny_byte_pair(), pair_on_device())
    )
    for ours, plain in zip(actual, expected, strict=True):
        assert ours.token_ids == plain.token_ids and ours.text == plain.text
        assert ours.ledger.certified and ours.ledger.is_within_bound
        assert ours.ledger.header.debt == pytest.approx(plain.ledger.header.debt, abs=1e-9)
        for left, right in zip(ours.ledger.steps, plain.ledger.steps, strict=True):
            assert left.accepted == right.accepted
            for figure in ("spend", "log_prob", "safe_log_prob"):
                assert abs(getattr(left, figure) - getattr(right, figure)) < TOLERANCE_NATS


@pytest.mark.usefixtures("summed_by_torch")
@pytest.mark.parametrize("divergence", ["kl", "max"])
def test_bytes_and_ledgers_are_those_of_the_cpu(divergence):
    rule = Anchored(k=0.5, divergence=divergence)
    num_prompts = 2 if divergence == "kl" else 1
    assert_bytes_of_the_cpu(rule, PROMPTS[1 : 1 + num_prompts], max_new_bytes=3)


@pytest.mark.parametrize("settings", [ByteSettings(prefetch=3), ByteSettings(tau=0.01)])
def test_what_the_host_chooses_by_masses_gives_them_too(device, settings):
    """Guesses and nodes left out, with a penalty on the tokens of the text."""
    assert_bytes_of_the_cpu(Anchored(k=0.5), PROMPTS[:1], 2, settings)


@pytest.mark.slow
def test_the_kernel_of_interval_sums_gives_them_too(device):
    assert_bytes_of_the_cpu(Anchored(k=0.5), PROMPTS[:1], max_new_bytes=2)
    assert device.launches["interval_log_sums_kernel"] > 0


@pytest.mark.usefixtures("summed_by_torch")
def test_a_byte_waits_once_and_a_prompt_without_a_debt_hardly(device):
    level = choose_level(pair_on_device(), "byte")
    rule = Anchored(k=0.5, debt="none")
    batch = PairedBatch(level, rule, SamplingConfig(), num_rows=2, max_length=60)
    assert all(type(stream) is DeviceByteStream for stream in batch.streams.values())
    requests = [
        Request(prompt_token_ids=list(text.encode()), max_new_tokens=30, seed=seed)
        for seed, text in enumerate(PROMPTS[:2])
    ]
    with device.counted() as waits:
        batch.admit(requests)
    assert waits.total() <= 4  # the places of stop tokens, of two models
    with device.counted() as waits:
        for _ in range(3):
            batch.step()
    assert waits.total() == 3, waits
