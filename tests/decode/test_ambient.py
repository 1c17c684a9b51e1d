"""What the caller has set around a call changes no result, or the call is refused in one line."""

from contextlib import ExitStack, contextmanager

import pytest
import torch
from tiny_models import tiny_llama
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from anchored import Anchored, Decoder, ModelPair, verify
from anchored.decode.ambient import plain_torch

TEXT = "the keeper of the lamp"


@contextmanager
def changed(set_value, before, value):
    set_value(value)
    try:
        yield
    finally:
        set_value(before)


def dtype(value):
    return changed(torch.set_default_dtype, torch.float32, value)


def state():
    """All that is put aside."""
    return (
        *(torch.get_default_dtype(), torch.get_default_device()),
        *(torch.get_float32_matmul_precision(), torch.is_inference_mode_enabled()),
    )


@contextmanager
def every_setting():
    """A caller that has changed all of them at once."""
    products = changed(torch.set_float32_matmul_precision, "highest", "medium")
    device = changed(torch.set_default_device, None, "meta")
    with dtype(torch.bfloat16), device, products, torch.inference_mode():
        yield


def outcomes(models, tokenizer, around):
    """What calls give while a state is set; it is the caller's between pieces and afterwards."""
    with around():
        before = state()
        decoder = Decoder(ModelPair(*models, tokenizer), Anchored(k=1.0))
        (result,) = decoder.generate(TEXT, max_new_tokens=5)
        stream = decoder.stream(TEXT, max_new_tokens=2)
        pieces = [next(stream)]
        assert state() == before
        pieces.append(next(stream))
        assert verify(result.ledger, decoder.pair)
        with pytest.raises(ValueError, match="temperature"):
            decoder.generate(TEXT, temperature=-1.0)
        assert state() == before
    return result, pieces, decoder.pair.row_attention


def test_a_state_around_a_call_changes_no_result(tokenizer):
    models = tiny_llama(1).float(), tiny_llama(2).float()
    expected = outcomes(models, tokenizer, ExitStack)
    assert outcomes(models, tokenizer, every_setting) == expected


def hook(module, *inputs):
    """A hook that changes nothing."""


@pytest.mark.parametrize(
    ("around", "reason"),
    [
        (lambda: torch.autocast("cpu", torch.bfloat16), r"torch\.autocast is on for cpu"),
        (lambda: FlopCounterMode(display=False), "torch's mode _FlopCounterMode"),  # of dispatch
        (TorchFunctionMode, "torch's mode TorchFunctionMode"),
        (lambda: register_module_forward_hook(hook), "a hook of all modules, hook, .*: remove it"),
    ],
)
def test_autocast_modes_and_hooks_of_all_modules_are_refused_by_name(pair, around, reason):
    decoder = Decoder(pair, Anchored(k=1.0))
    with around(), pytest.raises(ValueError, match=reason):
        decoder.generate(TEXT, max_new_tokens=1)
    assert decoder.generate(TEXT, max_new_tokens=1)


def test_threads_that_overlap_share_one_plain_state():
    """The dtype is one for all threads: the last that leaves brings it back."""
    with dtype(torch.bfloat16):
        first, second = plain_torch(), plain_torch()
        first.__enter__(), second.__enter__()
        first.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.float32
        second.__exit__(None, None, None)
        assert torch.get_default_dtype() == torch.bfloat16
