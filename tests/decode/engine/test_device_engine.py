"""When steps are taken on the device: where they can, where they agree, and what is refused."""

import logging
import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from device_results import KL, PROMPTS, stopping_llamas
from tiny_models import tiny_family, tiny_gpt2

from anchored import Decoder, ModelPair, SafeOnly
from anchored.decode.engine import device_check, engine
from anchored.decode.engine.device_batch import DeviceBatch
from anchored.decode.engine.device_check import largest_difference
from anchored.decode.engine.paired_batch import PairedBatch
from anchored.decode.levels.level import TokenLevel
from anchored.decode.models import column_attention
from anchored.decode.settings import SamplingConfig
from anchored.kernels.gpu import launch

# The interpreter divides by zero in lanes that it discards.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.fixture(scope="module")
def llama_pair(tokenizer) -> ModelPair:
    return stopping_llamas(tokenizer)


def blind(query, *_, value: float, **__):
    """An attention that reads nothing."""
    return torch.full_like(query, value)


@pytest.mark.parametrize("value", [0.0, torch.nan])
def test_an_attention_that_misreads_its_rows_is_found(llama_pair, value, monkeypatch, caplog):
    batch = DeviceBatch(TokenLevel(llama_pair), KL, SamplingConfig(), num_rows=2, max_length=20)
    error, tolerance = largest_difference(batch)
    assert batch.is_empty and batch.rule is KL
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
    monkeypatch.setattr(launch, "is_interpreted", lambda: False)
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        Decoder(llama_pair, KL, engine="device")


def test_hooks_are_refused_whenever_they_were_set(tokenizer, monkeypatch, caplog):
    pair = stopping_llamas(tokenizer)
    decoder = Decoder(pair, KL, engine="device")
    pair.safe.lm_head.register_forward_hook(lambda module, given, logits: -logits)
    reason = "the safe model has a hook on lm_head, which a captured step may not run"
    with pytest.raises(ValueError, match=f"cannot run here: {reason}"):
        decoder.generate(PROMPTS[0], max_new_tokens=3)
    monkeypatch.setattr(engine, "_is_on_cuda", lambda pair: True)
    with caplog.at_level(logging.WARNING):
        batch = Decoder(pair, KL, engine="auto").engine.open(SamplingConfig(), 1, 10)
    assert type(batch) is PairedBatch
    assert caplog.messages == [f"decoding step by step from the host: {reason}"]


def test_decoding_without_triton_is_eager(llama_pair, monkeypatch):
    code = """
import sys
sys.modules["triton"] = None
from anchored.decode import decoder
from anchored.decode.models import row_stream
from anchored.decode.replay import verification
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="triton is not installed"):
        Decoder(llama_pair, KL, engine="device")
