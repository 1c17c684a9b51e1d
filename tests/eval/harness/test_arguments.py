"""The lm-eval model from its arguments: those of pairs, rules and decoders, and lm-eval's own."""

import json
import logging
import re
from pathlib import Path

import pytest
import torch

from anchored import RCAD, Anchored, ByteSettings
from anchored.eval.harness.arguments import pair_arguments
from anchored.eval.harness.model import AnchoredLM

pytest.importorskip("lm_eval")

NAMES = {"safe": "a", "risky": "b", "k": 1.0}
NO_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="asks for a machine without CUDA")


def test_a_model_is_made_from_an_argument_string(pair_folders, tmp_path):
    safe, risky = map(str, pair_folders)
    lm = AnchoredLM.create_from_arg_string(
        f"safe={safe},risky={risky},k=0.5,debt_window=3,seed=7,dtype=float64,risky_device=cpu,"
        "speculate=2,safe_attn_implementation=eager,level=token",
        {"batch_size": "4", "device": "cpu", "max_batch_size": None},
    )
    assert lm.decoder.rule == Anchored(k=0.5, debt_window=3)
    assert (lm.decoder.batch_size, lm.seed, lm.max_length) == (4, 7, 128)
    assert (lm.rank, lm.world_size) == (0, 1)
    assert lm.decoder.pair.dtype == torch.float64
    assert lm.decoder.generate("salt", max_new_tokens=4)[0].ledger.drafted > 0
    assert lm.decoder.pair.safe.config._attn_implementation == "eager"
    named = tmp_path / "pair.json"
    named.write_text(json.dumps({"schema": "anchored-pair/1", "safe": safe, "risky": risky}))
    as_bytes = AnchoredLM.create_from_arg_obj(
        {"pair": str(named), "k": 2, "level": "byte", "byte_prefetch": 2}, {"device": "cpu"}
    )
    assert as_bytes.decoder.rule.k == 2
    assert as_bytes.decoder.level.byte_settings == ByteSettings(prefetch=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("risky=somewhere", "model arguments need safe: a model folder each"),
        ("k=1", "model arguments need safe and risky"),
        ("safe=a,risky=b,batch_size=many", "batch_size must be a whole number, got 'many'"),
        ("safe=a,risky=b,k=1,seed=-1", "seed must be a whole number, got -1"),
        ("safe=a,risky=b,k=1,risky_quantization=nowhere.json", "there is no file nowhere.json"),
        ("safe=a,risky=b,rule=magic", "rule must be one of anchored, "),
        ("safe=a,risky=b,k=much", "rule.k must be float | None, got 'much'"),
        ("safe=a,risky=b,level=word", "level must be "),
        ("safe=a,risky=b,k=1,kk=2", "settings of rule anchored"),
    ],
)
def test_bad_argument_strings_are_refused(arguments, message):
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(message)):
        AnchoredLM.create_from_arg_string(arguments)


def options(given, defaults=None):
    return pair_arguments(NAMES | given, defaults or {})[0]


@pytest.mark.parametrize(
    ("defaults", "given", "batch_size"),
    [
        ({"batch_size": 1}, {}, 16),  # lm-eval's own, when nobody asked
        ({"batch_size": "1"}, {}, 1),  # --batch_size 1
        ({"batch_size": 1}, {"batch_size": 1}, 1),
        ({"batch_size": "auto"}, {}, 16),
        ({"batch_size": "auto:4", "max_batch_size": 8}, {}, 8),
        ({"batch_size": "64", "max_batch_size": 8}, {}, 64),
        ({}, {"batch_size": 5}, 5),
    ],
)
def test_a_batch_size_is_the_one_that_was_asked_for(defaults, given, batch_size):
    assert options(given, defaults).batch_size == batch_size


@NO_CUDA
def test_what_the_command_passes_unasked_is_16_requests_at_once_on_the_cpu_with_a_line(caplog):
    from lm_eval.config.evaluate_config import EvaluatorConfig

    unasked = {name: getattr(EvaluatorConfig(), name) for name in ("batch_size", "device")}
    assert unasked == {"batch_size": 1, "device": "cuda:0"}
    with caplog.at_level(logging.WARNING):
        pair = options({}, unasked)
    assert (pair.batch_size, pair.device) == (16, "cpu")
    line = "there is no CUDA device here: the pair runs on the CPU, not on cuda:0"
    assert caplog.messages == [line]


@pytest.mark.parametrize(
    ("given", "device"),
    [
        ({"device": "mps"}, ("mps", None)),
        ({"risky_device": "mps"}, ("cpu", "mps")),
    ],
)
def test_devices_are_those_that_somebody_chose(given, device):
    pair = options(given, {"device": "cpu"})
    assert (pair.safe, pair.risky) == (Path("a"), Path("b"))
    assert (pair.device, pair.risky_device) == device


def test_what_no_option_is_called_is_a_setting_of_the_rule():
    names = {"safe": "a", "risky": "b", "rule": "rcad", "alpha": 0.25, "compared": False}
    pair, _ = pair_arguments(names, {})
    assert pair.rule.make() == RCAD(alpha=0.25, compared=False)
