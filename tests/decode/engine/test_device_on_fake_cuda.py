"""Decoding on a CUDA device that is not there: what CUDA would refuse, and tokens as on the CPU."""

import gc
import logging
from functools import partial

import pytest
import torch
from device_results import stopping_llamas
from fake_cuda import fake_cuda
from fake_cuda_graph import KEPT_BY_NOBODY
from tiny_models import tiny_llama, word_tokenizer

from anchored import Anchored, Decoder, ModelPair, RiskyOnly, SafeOnly, verify
from anchored.decode.engine import device_batch, device_check
from anchored.decode.engine.device_batch import CapturedStep, DeviceBatch
from anchored.decode.engine.engine import KeptBatches
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.engine.request import Request
from anchored.decode.levels.level import TokenLevel
from anchored.decode.models import column_attention
from anchored.decode.settings import SamplingConfig
from anchored.tools.bench.methods import bench_rules

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCE_NATS = 5e-5
"""As between the engines: float32 models."""

VOCAB_SIZE = 40
KL, MAX = Anchored(k=0.5), Anchored(k=0.5, divergence="max")
PROMPTS = [[5, 6, 7], [8, 9], [3, 4, 5, 6], [11], [12, 13, 14]]
FIGURES = ("budget", "spend", "weight", "log_prob", "safe_log_prob")


@pytest.fixture
def device(monkeypatch):
    """Its graphs are captured at once, one way each, and attention is computed by torch."""
    monkeypatch.setattr(device_batch, "NUM_WARM_UPS", 1)
    monkeypatch.setattr(device_batch, "WAYS", (True,))
    monkeypatch.setattr(CapturedStep, "measured_ms", lambda step: 1.0)
    by_torch = partial(column_attention.decode_attention, backend="torch")
    monkeypatch.setattr(column_attention, "decode_attention", by_torch)
    with fake_cuda(num_processors=1) as device:
        yield device


@pytest.fixture
def trusted(monkeypatch):
    """Steps on the device are not compared with eager ones first."""
    monkeypatch.setattr(device_check, "largest_difference", lambda batch: (0.0, 1.0))


def word_pair(place: str) -> ModelPair:
    """Float32 models of 40 words that end texts here and there; two stop tokens are merged."""
    safe, risky = (tiny_llama(seed, vocab_size=VOCAB_SIZE).float() for seed in (1, 2))
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 0.5
    risky.generation_config.eos_token_id = [1, 2]
    return ModelPair(safe.to(place), risky.to(place), word_tokenizer(VOCAB_SIZE))


def generated(pair, rule, prompts, *, batch_size, engine="eager", speculate="off", **settings):
    settings = {
        "max_new_tokens": 4,
        "temperature": 1.0,
        "seed": list(range(len(prompts))),
    } | settings
    decoder = Decoder(pair, rule, batch_size=batch_size, engine=engine, speculate=speculate)
    return decoder.generate(prompts, **settings)


def assert_same(expected, actual) -> None:
    for ours, plain in zip(actual, expected, strict=True):
        assert (ours.token_ids, ours.text) == (plain.token_ids, plain.text)
        assert (ours.finish_reason, ours.error) == (plain.finish_reason, plain.error)
        assert ours.ledger.certified and ours.ledger.is_within_bound
        assert ours.ledger.header.bound == pytest.approx(plain.ledger.header.bound, abs=1e-4)
        for left, right in zip(ours.ledger.steps, plain.ledger.steps, strict=True):
            assert (left.step, left.accepted) == (right.step, right.accepted)
            for figure in FIGURES:
                error = abs(getattr(left, figure) - getattr(right, figure))
                assert error < TOLERANCE_NATS * max(1, left.step), figure


@pytest.mark.parametrize(
    ("rule", "num_prompts", "engine", "drafts"),
    [
        (KL, 1, "eager", "off"),
        (MAX, 2, "eager", "off"),
        (KL, 5, "eager", "off"),
        (KL, 2, "eager", 3),
        (KL, 1, "device", "off"),
        (MAX, 2, "device", "off"),
        pytest.param(KL, 5, "device", "off", marks=pytest.mark.slow),
        (MAX, 1, "device", 1),
        (KL, 2, "device", 1),
        pytest.param(KL, 5, "device", 1, marks=pytest.mark.slow),
        (KL, 1, "device", 3),
        pytest.param(KL, 2, "device", 3, marks=pytest.mark.slow),
        pytest.param(MAX, 5, "device", 3, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("trusted")
def test_tokens_and_ledgers_are_those_of_the_cpu(device, rule, num_prompts, engine, drafts):
    asked = PROMPTS[:num_prompts]
    expected = generated(word_pair("cpu"), rule, asked, batch_size=num_prompts)
    pair = word_pair("cuda")
    actual = generated(pair, rule, asked, batch_size=num_prompts, engine=engine, speculate=drafts)
    assert_same(expected, actual)


@pytest.mark.usefixtures("trusted")
def test_rows_that_finish_join_and_meet_a_stop_string(device):
    prompts = [PROMPTS[0], PROMPTS[1], PROMPTS[2]]
    free = generated(word_pair("cpu"), KL, prompts, batch_size=2, max_new_tokens=6)
    stop = free[0].text.split()[2]
    expected = generated(
        word_pair("cpu"), KL, prompts, batch_size=2, max_new_tokens=6, stop=(stop,)
    )
    actual = generated(
        word_pair("cuda"),
        KL,
        prompts,
        batch_size=2,
        max_new_tokens=6,
        stop=(stop,),
        engine="device",
    )
    assert_same(expected, actual)
    assert "stop_string" in {result.finish_reason for result in actual}
    assert len({len(result.token_ids) for result in actual}) > 1


CALLS = {
    "truncated": (KL, {"top_p": 0.9, "top_k": 20, "min_p": 0.01}),
    "greedy": (KL, {"temperature": 0.0}),
    "the safe model alone": (SafeOnly(), {}),
    "the risky model beside it": (RiskyOnly(), {}),
    "the risky model alone": (RiskyOnly(compared=False), {}),
}


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(("rule", "settings"), CALLS.values(), ids=CALLS)
def test_calls_that_need_the_host_give_the_tokens_of_the_cpu(rule, settings):
    expected, actual = (
        generated(word_pair(place), rule, PROMPTS[:2], batch_size=2, **settings)
        for place in ("cpu", "cuda")
    )
    assert [r.token_ids for r in actual] == [r.token_ids for r in expected]
    assert not any(result.error for result in actual)


METHODS = bench_rules(k=0.5, horizon=4, passages=["t5 t6 t7 t8 t9"], words=["t5", "t6", "t9"])


@pytest.mark.slow
@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("rule", METHODS.values(), ids=METHODS)
def test_every_method_gives_the_tokens_of_the_cpu_and_verifies(rule):
    reads_a_passage = any(reading.takes_passage for reading in rule.streams.values())
    asked = {"passages": "t5 t7 t9"} if reads_a_passage else {}
    pairs = [word_pair(place) for place in ("cpu", "cuda")]
    expected, actual = (
        generated(pair, rule, PROMPTS[:2], batch_size=2, repetition_penalty=1.3, **asked)
        for pair in pairs
    )
    assert [r.token_ids for r in actual] == [r.token_ids for r in expected]
    assert all(verify(result.ledger, pairs[1]).is_ok for result in actual)


@pytest.mark.usefixtures("device")
def test_scores_are_those_of_the_cpu():
    expected, actual = (
        Decoder(word_pair(place), KL).score(PROMPTS[:2], [[5, 9], [7, 6, 4]])
        for place in ("cpu", "cuda")
    )
    for ours, plain in zip(actual, expected, strict=True):
        assert ours.token_log_probs == pytest.approx(plain.token_log_probs, abs=TOLERANCE_NATS)
        assert ours.spends == pytest.approx(plain.spends, abs=TOLERANCE_NATS)


def test_a_user_gets_steps_on_the_device_and_a_ledger_that_verifies(device, tokenizer, caplog):
    """By default, with text, compared with eager steps first, by the Triton attention too."""
    expected = Decoder(stopping_llamas(tokenizer), Anchored(k=1.0)).generate(
        ["the keeper"], max_new_tokens=3
    )
    pair = stopping_llamas(tokenizer)
    pair = ModelPair(pair.safe.to("cuda"), pair.risky.to("cuda"), tokenizer)
    decoder = Decoder(pair, Anchored(k=1.0))
    with caplog.at_level(logging.WARNING):
        actual = decoder.generate(["the keeper"], max_new_tokens=3)
    assert_same(expected, actual)
    assert not caplog.messages and len(decoder.engine._kept) == 1
    assert verify(actual[0].ledger, pair).is_ok


def test_attention_reads_the_rows_that_it_is_told(device):
    """Given as a mask, their numbers do not lie one behind the other."""
    torch.manual_seed(0)
    query = torch.randn(2, 4, 2, 16, device="cuda")
    key, value = (torch.randn(2, 2, 12, 16, device="cuda") for _ in range(2))
    positions = torch.tensor([[3, 4], [8, 9]]).pin_memory().to("cuda", non_blocking=True)
    mask = column_attention.places(positions)
    expected, _ = column_attention.column_attention(None, query, key, value, mask)
    column_attention.decode_attention.keywords["backend"] = "triton"
    actual, _ = column_attention.column_attention(None, query, key, value, mask)
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
    assert device.launches["split_kernel"] == 1


def test_a_graph_keeps_all_that_its_step_touches(device):
    batch = opened(word_pair("cuda"), num_drafts=1)
    gc.collect()
    batch._runs[1]()
    batch._runs[1]._step = None
    gc.collect()
    with pytest.raises(RuntimeError, match=KEPT_BY_NOBODY):
        batch._runs[1]()


def opened(pair, num_drafts=0, num_rows=2, max_length=40) -> DeviceBatch:
    return DeviceBatch(
        TokenLevel(pair),
        KL,
        SamplingConfig(),
        num_rows=num_rows,
        max_length=max_length,
        draft_lengths=(num_drafts,),
    )


def asked(num_rows: int) -> list[Request]:
    return [
        Request(prompt_token_ids=PROMPTS[row], max_new_tokens=20, seed=row, index=row)
        for row in range(num_rows)
    ]


@pytest.mark.parametrize("num_rows", [1, 2])
def test_an_eager_token_waits_once_and_a_prompt_for_its_debt(device, num_rows):
    level, sampling = TokenLevel(word_pair("cuda")), SamplingConfig(temperature=1.0)
    batch = PairedBatch(level, KL, sampling, num_rows=2, max_length=40)
    with device.counted() as waits:
        batch.admit(asked(num_rows))
    assert waits.total() <= 5 * 2, waits
    batch.step()
    with device.counted() as waits:
        for _ in range(3):
            batch.step()
    assert waits.total() == 3


@pytest.mark.parametrize("num_drafts", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_a_step_waits_for_nothing_and_a_look_once(device, num_drafts):
    batch = opened(word_pair("cuda"), num_drafts)
    batch.admit(asked(2))
    with device.counted() as waits:
        batch.step()
    assert waits.total() == 1
    with device.counted() as waits:
        batch._runs[num_drafts]()
        batch._runs[num_drafts]._step()
    assert waits.total() == 0


@pytest.mark.usefixtures("trusted")
def test_batches_are_kept_by_rows_and_columns(device):
    pair = word_pair("cuda")
    decoder = Decoder(pair, KL, engine="device", batch_size=8)
    open_batch = partial(decoder.engine.open, SamplingConfig())
    three = open_batch(3, 40)
    assert open_batch(4, 250) is three and len(three.free_rows) == 4
    assert open_batch(3, 40) is three and len(three.free_rows) == 3
    longer, alone = open_batch(3, 300), open_batch(1, 10)
    assert len({id(batch) for batch in (three, longer, alone)}) == 3
    assert open_batch(4, 400) is longer and open_batch(1, 200) is alone
    with torch.no_grad():
        pair.safe.lm_head.weight[5] += 1.0
    assert open_batch(1, 10) is not alone


def test_kept_batches_have_a_bound(device, monkeypatch):
    class Batch:
        def fits(self, num_rows, max_length):
            return False

    def taking(num_bytes):
        def make():
            batch = Batch()
            batch.memory = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
            return batch

        return make

    kept, place = KeptBatches(), torch.device("cuda:0")
    for _ in range(3):
        kept.added(taking(1000), place)
    assert len(kept) == 3
    device.properties.total_memory = 8 * 1500  # an eighth holds one beside the newest
    kept.added(taking(1000), place)
    assert len(kept) == 2
    device.properties.total_memory = 1 << 40
    for _ in range(20):
        kept.added(taking(1), place)
    assert len(kept) == 8
    full = iter([torch.OutOfMemoryError("out of memory"), None])

    def make():
        if error := next(full):
            raise error
        return Batch()

    kept.added(make, place)
    assert len(kept) == 1
