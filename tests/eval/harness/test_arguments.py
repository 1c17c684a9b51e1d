"""The lm-eval model from its arguments: those of pairs, rules and decoders, and lm-eval's own."""

import json
import logging

import pytest
import torch
from transformers.utils.quantization_config import QuantizationConfigMixin

from anchored import Anchored, ByteSettings, Decoder, SafeOnly
from anchored.eval.harness.arguments import HarnessArguments
from anchored.eval.harness.model import AnchoredLM

pytest.importorskip("lm_eval")

NAMES = {"safe": "a", "risky": "b", "k": 1.0}
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a machine without CUDA")


def test_a_model_is_made_from_an_argument_string(pair_folders):
    safe, risky = pair_folders
    lm = AnchoredLM.create_from_arg_string(
        f"safe={safe},risky={risky},k=0.5,debt_window=3,seed=7",
        {"batch_size": "4", "device": "cpu", "max_batch_size": None},
    )
    assert lm.decoder.rule == Anchored(k=0.5, debt_window=3)
    assert (lm.decoder.batch_size, lm.seed, lm.max_length) == (4, 7, 128)
    assert (lm.rank, lm.world_size) == (0, 1)
    alone = AnchoredLM.create_from_arg_obj({"safe": safe, "risky": risky, "rule": "safe_only"})
    assert alone.decoder.rule == SafeOnly()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("risky=somewhere", "model arguments need safe: a model folder each"),
        ("k=1", "model arguments need safe and risky"),
        ("safe=a,risky=b,batch_size=many", "batch_size must be a whole number, got 'many'"),
        ("safe=a,risky=b,k=1,seed=-1", "seed must be a whole number, got -1"),
        ("safe=a,risky=b,k=1,risky_quantization=QUANTIZATION", 'object with "quant_method"'),
        ("safe=a,risky=b,rule=magic", "rule must be one of anchored"),
        ("safe=a,risky=b,k=1,kk=2", "settings of rule anchored"),
    ],
)
def test_bad_argument_strings_are_refused(arguments, message, tmp_path):
    (tmp_path / "quantization.json").write_text("{}")
    arguments = arguments.replace("QUANTIZATION", str(tmp_path / "quantization.json"))
    with pytest.raises(ValueError, match=message):
        AnchoredLM.create_from_arg_string(arguments)


@pytest.mark.parametrize(
    ("defaults", "given", "batch_size"),
    [
        ({"batch_size": 1}, {}, 16),  # lm-eval's command line, when nobody asked
        ({"batch_size": "1"}, {}, 1),  # --batch_size 1
        ({"batch_size": 1}, {"batch_size": 1}, 1),
        ({"batch_size": "auto"}, {}, 16),
        ({"batch_size": "auto:4", "max_batch_size": 8}, {}, 8),
        ({"batch_size": "64", "max_batch_size": 8}, {}, 64),
        ({}, {"batch_size": 5}, 5),
    ],
)
def test_a_batch_size_is_the_one_that_was_asked_for(defaults, given, batch_size):
    arguments = HarnessArguments.of(NAMES | given, defaults)
    assert arguments.decoder == {"batch_size": batch_size}


@NO_CUDA
def test_cuda_that_nobody_chose_becomes_the_cpu_with_a_line(caplog):
    with caplog.at_level(logging.WARNING):
        arguments = HarnessArguments.of(NAMES, {"device": "cuda:0"})
    assert arguments.pair["device"] == "cpu"
    line = "there is no CUDA device here: the pair runs on the CPU, not on cuda:0"
    assert caplog.messages == [line]


@pytest.mark.parametrize(
    ("given", "default", "device"),
    [
        ({"device": "meta"}, "cpu", {"device": "meta"}),
        ({"risky_device": "meta"}, "cpu", {"device": {"safe": "cpu", "risky": "meta"}}),
        ({"tp_size": 2}, "cpu", {"tp_size": 2}),  # each process has a device of its own
    ],
)
def test_devices_are_those_that_somebody_chose(given, default, device):
    arguments = HarnessArguments.of(NAMES | given, {"device": default})
    assert arguments.pair == {"safe": "a", "risky": "b", **device}


def test_a_split_pair_is_given_no_device():
    with pytest.raises(ValueError, match="tp_size gives each process its own device"):
        HarnessArguments.of(NAMES | {"tp_size": 2, "device": "cpu"}, {}).make_decoder()


def test_pair_and_decoder_take_every_argument_by_name(pair_folders):
    safe, risky = pair_folders
    lm = AnchoredLM.create_from_arg_string(
        f"safe={safe},risky={risky},k=2,dtype=float64,risky_device=cpu,engine=eager,speculate=2,"
        "safe_attn_implementation=eager,level=token"
    )
    decoder = lm.decoder
    assert decoder.pair.dtype == torch.float64
    assert decoder.generate("salt", max_new_tokens=4)[0].ledger.drafted > 0
    assert decoder.pair.safe.config._attn_implementation == "eager"
    as_bytes = AnchoredLM.create_from_arg_obj(
        {"safe": safe, "risky": risky, "k": 2, "level": "byte", "byte_debt": "bounded"},
        {"device": "cpu"},
    )
    assert as_bytes.decoder.level.byte_settings.debt == "bounded"
    settings = "level=byte,byte_tau=0.001,byte_prefetch=4,byte_mode=raw,byte_warped=byte"
    as_bytes = AnchoredLM.create_from_arg_string(f"safe={safe},risky={risky},k=2,{settings}")
    expected = ByteSettings(tau=0.001, prefetch=4, mode="raw", warped="byte")
    assert as_bytes.decoder.level.byte_settings == expected


def test_ratios_and_quantisation_come_from_files(pair, tmp_path):
    Decoder(pair, Anchored(k=1.0)).prompt_ratios("salt").save(tmp_path / "ratios.safetensors")
    settings = {"quant_method": "eetq"}
    (tmp_path / "quantization.json").write_text(json.dumps(settings))
    files = {
        "prompt_ratios": tmp_path / "ratios.safetensors",
        "risky_quantization": tmp_path / "quantization.json",
    }
    arguments = HarnessArguments.of(NAMES | files, {})
    assert len(arguments.decoder["prompt_ratios"].by_prompt) == 1
    assert isinstance(arguments.pair["risky_quantization"], QuantizationConfigMixin)
