"""Steps on the device give what the eager engine gives, and ask the device for nothing."""

import logging
import os
import subprocess
import sys
from dataclasses import asdict
from functools import partial

import pytest
import torch
from tiny_models import tiny_family, tiny_gpt2, tiny_llama
from torch import Tensor
from torch.overrides import TorchFunctionMode

from anchored import Anchored, Decoder, ModelPair, SafeOnly, verify
from anchored.decode import column_attention, device_check, device_refusal, engine
from anchored.decode.device_batch import CAPACITY_STEP, DeviceBatch, capacity_for
from anchored.decode.device_check import largest_difference
from anchored.decode.device_state import NUM_KEPT
from anchored.decode.ledger import Ledger
from anchored.decode.paired_batch import PairedBatch
from anchored.decode.request import Request
from anchored.decode.sampling_config import SamplingConfig
from anchored.decode.token_level import TokenLevel
from anchored.kernels import triton_launch

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

TOLERANCE_NATS = 5e-5
"""Of spends and log-probabilities; measured: 1e-5, in float32 models of 320 tokens. Where a budget
is all but spent log p* moves with its square root: with 2e-5 nats left, 8e-5 by eager steps and
7e-4 by these, against float64. Budgets are sums of spends."""

PROMPTS = ["the keeper of the lamp", "salt", "Nine tides ago, the harbour bell rang twice"]
KL, MAX = Anchored(k=1.0), Anchored(k=1.0, divergence="max")


def pair_of(tokenizer, family: str) -> ModelPair:
    """Float32 models of which some texts end early; two stop tokens are merged."""
    models = [tiny_family(family, seed).float() for seed in (1, 2)]
    models[1].generation_config.eos_token_id = [1, 2]
    return ModelPair(*models, tokenizer)


@pytest.fixture(scope="module")
def llama_pair(tokenizer) -> ModelPair:
    safe, risky = tiny_llama(1).float(), tiny_llama(2, layers=3).float()
    for model in (safe, risky):
        model.lm_head.weight.data[1] += 1.0
    risky.generation_config.eos_token_id = [1, 2]
    return ModelPair(safe, risky, tokenizer)


def both(pair, rule, prompts=PROMPTS, *, batch_size=2, seed=0, **settings):
    """Results of the eager engine and of the one on the device."""
    seeds = [seed + index for index in range(len(prompts))]
    return [
        Decoder(pair, rule, batch_size=batch_size, engine=name).generate(
            prompts, seed=seeds, **settings
        )
        for name in ("eager", "device")
    ]


def assert_same(expected, actual) -> None:
    """Tokens, ends and accounting alike; figures within TOLERANCE_NATS."""
    for eager, device in zip(expected, actual, strict=True):
        assert device.token_ids == eager.token_ids
        assert device.text == eager.text and device.error == eager.error
        assert device.finish_reason == eager.finish_reason
        ours, theirs = device.ledger, eager.ledger
        assert without_debt(ours) == without_debt(theirs) and ours.certified == theirs.certified
        # Rows that join at other times are read beside other prompts, which moves rounding.
        assert ours.header.debt == pytest.approx(theirs.header.debt, abs=TOLERANCE_NATS)
        # A step reads, then draws: the prompt's last token is read once more.
        assert ours.safe_forwards == 1 + theirs.safe_forwards
        assert ours.risky_forwards == 1 + theirs.risky_forwards + theirs.skipped_risky
        for left, right in zip(ours.steps, theirs.steps, strict=True):
            assert (left.step, left.accepted) == (right.step, right.accepted)
            for name in ("budget", "spend", "log_prob", "safe_log_prob"):
                error = abs(getattr(left, name) - getattr(right, name))
                assert error < TOLERANCE_NATS * (len(ours.steps) if name == "budget" else 1)


def without_debt(ledger: Ledger) -> dict[str, object]:
    header = asdict(ledger.header)
    return {name: value for name, value in header.items() if name not in ("debt", "bound")}


@pytest.mark.parametrize("rule", [KL, MAX], ids=["kl", "max"])
def test_rows_that_join_and_leave_get_the_eager_tokens_and_ledgers_that_verify(llama_pair, rule):
    expected, actual = both(llama_pair, rule, seed=4, max_new_tokens=10, temperature=1.0)
    assert_same(expected, actual)
    assert len({len(result.token_ids) for result in actual}) > 1
    for result in actual:
        assert result.ledger.certified and result.ledger.is_within_bound
        assert verify(result.ledger, llama_pair).is_ok


@pytest.mark.parametrize(
    ("family", "rule"),
    [
        ("qwen2", Anchored(k=1.0, budget="fixed", divergence="max")),
        ("gpt2", Anchored(k=6.0, budget="global")),
        pytest.param("qwen3", KL, marks=pytest.mark.slow),
        pytest.param("mistral", MAX, marks=pytest.mark.slow),
        pytest.param("olmo2", KL, marks=pytest.mark.slow),
    ],
)
def test_every_family_gets_the_eager_tokens(tokenizer, family, rule):
    pair = pair_of(tokenizer, family)
    expected, actual = both(pair, rule, PROMPTS[:2], max_new_tokens=6)
    assert_same(expected, actual)
    assert verify(actual[0].ledger, pair).is_ok


@pytest.mark.slow
@pytest.mark.parametrize("rule", [KL, MAX], ids=["kl", "max"])
def test_many_requests_in_batches_of_three(llama_pair, rule):
    prompts = [prompt * (1 + index % 3) for index, prompt in enumerate(PROMPTS * 3)]
    assert_same(*both(llama_pair, rule, prompts, batch_size=3, max_new_tokens=20))


def test_one_row_alone_and_a_stop_string_that_only_the_host_sees(llama_pair):
    (free,) = Decoder(llama_pair, KL, engine="eager").generate(
        PROMPTS[:1], max_new_tokens=2 * NUM_KEPT, seed=3
    )
    stop = "".join(text for text, _ in free.pieces)[3:6]
    expected, actual = both(
        llama_pair, KL, PROMPTS[:1], seed=3, max_new_tokens=2 * NUM_KEPT, stop=(stop,)
    )
    assert_same(expected, actual)
    assert actual[0].finish_reason == "stop_string"
    assert len(actual[0].token_ids) < NUM_KEPT  # others were drawn after it, and dropped


def test_a_row_whose_logits_become_nan_fails_alone(tokenizer):
    safe, risky = tiny_llama(1).float(), tiny_llama(2, layers=3).float()
    pair = ModelPair(safe, risky, tokenizer)
    first, second = Decoder(pair, KL, engine="eager").generate(PROMPTS[:2], max_new_tokens=6)
    poison = first.token_ids[2]
    assert poison not in first.token_ids[:2] + second.token_ids
    risky.model.embed_tokens.weight.data[poison] = torch.nan
    expected, actual = both(pair, KL, PROMPTS[:2] + PROMPTS[1:2], seed=0, max_new_tokens=6)
    assert_same(expected, actual)
    failed, *others = actual
    assert "request 0: the risky model's logits at step 3 are NaN" in failed.error
    assert len(failed.token_ids) == 3 and not failed.ledger.certified
    assert not any(result.error for result in others)


def test_pieces_come_as_the_eager_engine_gives_them_and_the_batch_is_kept(llama_pair):
    settings = {"max_new_tokens": 5, "seed": 2}
    decoders = [Decoder(llama_pair, KL, engine=name) for name in ("eager", "device")]
    expected, actual = ([*d.stream(PROMPTS[0], **settings)] for d in decoders)
    assert [piece.text for piece in actual] == [piece.text for piece in expected]
    kept = decoders[1].engine._kept
    expected, actual = (
        d.generate(PROMPTS[1:2], temperature=1.3, repetition_penalty=1.0, **settings)
        for d in decoders
    )
    assert_same(expected, actual)
    assert kept is not None and decoders[1].engine._kept is kept


def new_batch(pair, num_drafts: int = 0) -> DeviceBatch:
    return DeviceBatch(
        TokenLevel(pair),
        KL,
        SamplingConfig(),
        num_rows=2,
        max_length=40,
        draft_lengths=(num_drafts,),
    )


def admitted(batch: PairedBatch, prompt: list[int], max_new_tokens: int) -> None:
    batch.admit([Request(prompt_token_ids=prompt, max_new_tokens=max_new_tokens, seed=9)])


def test_a_finished_row_reads_its_last_token_again_and_changes_nothing(llama_pair):
    batch = new_batch(llama_pair)
    admitted(batch, [5, 6, 7], 1)
    admitted(batch, [9, 4], 20)
    state, cache = batch._state_on_device, batch.streams["risky"]._cache
    batch._runs[0]()
    assert state.is_finished.tolist() == [True, False]
    batch._runs[0]()  # the row reads what it drew last, and from here on again and again
    watched = {
        "token": state.last_tokens,
        "position": state.positions,
        "seen": state.seen,
        "logits": state.logits["risky"],
        "keys": cache._layers[-1].keys,
    }
    before = {name: values[0].clone() for name, values in watched.items()}
    address = cache._layers[-1].keys.data_ptr()
    batch._runs[0]()
    for name, values in watched.items():
        torch.testing.assert_close(values[0], before[name], rtol=0, atol=1e-4, msg=name)
    assert before["position"] == 3 and state.positions[1] == 4
    assert cache._layers[-1].keys.data_ptr() == address
    assert state.records[:3, :, 0, -1].tolist() == [[1.0, 1.0], [0.0, 1.0], [0.0, 1.0]]


class NoAnswers(TorchFunctionMode):
    """Refuses every call that a CUDA tensor could answer only after the device is done."""

    WAITING = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")
    WAITING += ("__index__", "masked_select", "equal", "allclose", "unique")

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self.WAITING and isinstance(args[0], Tensor):
            raise AssertionError(f"{name} waits for the device")
        if name == "where" and not all(isinstance(value, Tensor) for value in args):
            raise AssertionError("a number in where is copied to the device")
        indexed = args[1] if name in ("__getitem__", "__setitem__") else ()
        for index in indexed if isinstance(indexed, tuple) else (indexed,):
            if isinstance(index, Tensor) and index.dtype == torch.bool:
                raise AssertionError("a boolean index waits for the device")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("family", "num_drafts"), [("llama", 2), ("gpt2", 0)])
def test_a_step_asks_the_device_for_nothing(tokenizer, family, num_drafts):
    batch = new_batch(pair_of(tokenizer, family), num_drafts)
    admitted(batch, [5, 6, 7], 4)
    with NoAnswers():
        batch._runs[num_drafts]()
        with pytest.raises(AssertionError, match="waits for the device"):
            batch._state_on_device.is_finished.all().item()
        with pytest.raises(AssertionError, match="waits for the device"):
            batch._state_on_device.positions[batch._state_on_device.is_finished]
        with pytest.raises(AssertionError, match="waits for the device"):
            assert batch._state_on_device.is_finished.any()


@pytest.mark.gpu
def test_a_captured_step_gives_the_eager_tokens_and_waits_for_nothing(llama_pair):
    pair = ModelPair(llama_pair.safe.cuda(), llama_pair.risky.cuda(), llama_pair.tokenizer)
    assert_same(*both(pair, KL, max_new_tokens=30))
    batch = new_batch(pair)
    admitted(batch, [5, 6, 7], 4)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batch._runs[0]()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_storage_is_taken_at_once_and_grows_in_steps(llama_pair):
    assert capacity_for(1) == capacity_for(CAPACITY_STEP) == CAPACITY_STEP
    assert capacity_for(CAPACITY_STEP + 1) == 2 * CAPACITY_STEP
    batch = new_batch(llama_pair)
    layer = batch.streams["safe"]._cache._layers[0]
    assert layer.keys.shape[2] == CAPACITY_STEP
    assert batch.fits(2, CAPACITY_STEP) and not batch.fits(3, 40)
    admitted(batch, [5], 3)
    assert not batch.fits(2, CAPACITY_STEP)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Conversion of an array:DeprecationWarning")
def test_the_triton_attention_gives_the_eager_tokens_too(tokenizer, monkeypatch):
    triton_attention = partial(column_attention.decode_attention, backend="triton")
    monkeypatch.setattr(column_attention, "decode_attention", triton_attention)
    assert_same(*both(pair_of(tokenizer, "qwen3"), KL, max_new_tokens=6))


def blind(query, *_, value: float, **__):
    """An attention that reads nothing."""
    return torch.full_like(query, value)


@pytest.mark.parametrize("value", [0.0, torch.nan])
def test_an_attention_that_misreads_its_rows_is_found(llama_pair, value, monkeypatch, caplog):
    error, tolerance = largest_difference(llama_pair, "kl", num_drafts=0)
    assert error < tolerance / 5
    monkeypatch.setattr(column_attention, "decode_attention", partial(blind, value=value))
    with pytest.raises(ValueError, match="steps on the device differ by"):
        Decoder(llama_pair, KL, engine="device").generate(PROMPTS[0], max_new_tokens=3)
    monkeypatch.setattr(engine, "_is_on_cuda", lambda pair: True)
    decoder = Decoder(llama_pair, KL, engine="auto")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            batch = decoder.engine.open(SamplingConfig(), 1, 10)
            assert type(batch) is PairedBatch
    assert len(caplog.messages) == 1
    assert "decoding step by step from the host: steps on the device differ by" in caplog.text


def test_auto_decodes_eagerly_where_steps_on_the_device_fail(llama_pair, monkeypatch, caplog):
    def failing(*_, **__):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(engine, "_is_on_cuda", lambda pair: True)
    monkeypatch.setattr(device_check, "largest_difference", failing)
    with caplog.at_level(logging.WARNING):
        (result,) = Decoder(llama_pair, KL).generate(PROMPTS[0], max_new_tokens=3)
    assert result.token_ids and len(caplog.messages) == 1
    assert "steps on the device fail: operation not permitted" in caplog.text
    with pytest.raises(RuntimeError, match="not permitted"):
        Decoder(llama_pair, KL, engine="device").generate(PROMPTS[0], max_new_tokens=3)


def test_auto_takes_the_device_on_cuda_only(llama_pair, monkeypatch, caplog):
    decoder = Decoder(llama_pair, KL)
    assert type(decoder.engine.open(SamplingConfig(), 1, 10)) is PairedBatch
    monkeypatch.setattr(engine, "_is_on_cuda", lambda pair: True)
    monkeypatch.setattr(device_check, "largest_difference", lambda *_, **__: (0.0, 1.0))
    assert type(decoder.engine.open(SamplingConfig(), 1, 10)) is DeviceBatch
    with caplog.at_level(logging.WARNING):
        assert type(decoder.engine.open(SamplingConfig(top_p=0.9), 1, 10)) is PairedBatch
    assert caplog.messages == ["decoding step by step from the host: top_p cut off tokens"]


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({"top_k": 5}, "top_k cut off tokens"),
        ({"top_p": 0.9, "min_p": 0.1}, "top_p and min_p cut off tokens"),
        ({"temperature": 0.0}, "temperature 0 samples nothing"),
    ],
)
def test_sampling_that_needs_the_host_is_refused(llama_pair, sampling, reason):
    decoder = Decoder(llama_pair, KL, engine="device")
    with pytest.raises(ValueError, match=f"cannot run here: {reason}"):
        decoder.generate(PROMPTS[0], **sampling)
    with pytest.raises(ValueError, match=reason):
        decoder.stream(PROMPTS[0], **sampling)


def test_pairs_and_rules_that_cannot_run_on_the_device_are_refused(
    pair, llama_pair, tokenizer, monkeypatch
):
    sliding = ModelPair(tiny_gpt2(5).float(), tiny_family("mistral, sliding", 1).float(), tokenizer)
    for wrong_pair, rule, reason in [
        (pair, KL, "the safe model is torch.float64, not one of float32"),
        (llama_pair, SafeOnly(), "the rule safe_only is not Anchored"),
        (sliding, KL, r"the risky model \(mistral\) is not of a tested family"),
    ]:
        with pytest.raises(ValueError, match=reason):
            Decoder(wrong_pair, rule, engine="device")
    with pytest.raises(ValueError, match="engine must be"):
        Decoder(llama_pair, KL, engine="graph")
    monkeypatch.setattr(triton_launch, "is_interpreted", lambda: False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        Decoder(llama_pair, KL, engine="device")


def test_decoding_without_triton_is_eager(llama_pair, monkeypatch):
    code = """
import sys
sys.modules["triton"] = None
from anchored.decode import decoder, row_stream, verification
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    monkeypatch.setattr(device_refusal, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="triton is not installed"):
        Decoder(llama_pair, KL, engine="device")
