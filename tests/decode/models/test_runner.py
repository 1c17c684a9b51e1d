"""The packed output layer of a runner gives the numbers of the plain one."""

import pytest
import torch
from tiny_models import tiny_llama
from torch import nn
from transformers import LlamaForCausalLM

from anchored.decode.models.row_stream import ModelRunner


def packing_model(dtype: torch.dtype, bias: bool) -> LlamaForCausalLM:
    model = tiny_llama(1).to(dtype)
    model.lm_head = nn.Linear(32, 320, bias=bias, dtype=dtype)
    return model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_a_packed_layer_gives_the_logits_of_the_plain_one(dtype, bias):
    model = packing_model(dtype, bias)
    packed, plain = (ModelRunner(model, 300, packs=packs) for packs in (True, False))
    hidden = torch.randn(3, 5, 32, dtype=dtype)
    error = (packed.logits(hidden) - plain.logits(hidden)).abs().max()
    assert packed.logits(hidden).shape == (3, 5, 300)
    # 32 products and a bias, each below 4 in size, rounded once a sum.
    assert error <= 40 * torch.finfo(dtype).eps * hidden.abs().max()


@torch.inference_mode()
def test_a_packed_row_has_the_same_bits_among_any_others():
    output = ModelRunner(packing_model(torch.float32, bias=True), 300)
    hidden = torch.randn(33, 32)
    logits = output.logits(hidden)
    hidden[7] = torch.nan
    for rows in (slice(0, 1), slice(2, 4), slice(3, 7), slice(8, 33)):
        assert torch.equal(output.logits(hidden[rows]), logits[rows])
    assert output.logits(hidden).isnan().any(-1).nonzero().tolist() == [[7]]


@pytest.mark.parametrize("through_data", [False, True])
def test_a_changed_weight_is_packed_anew(through_data):
    model = packing_model(torch.float32, bias=False)
    output, hidden = ModelRunner(model, 300), torch.randn(2, 32)
    with torch.inference_mode():
        before = output.logits(hidden)
    weight = model.lm_head.weight.data if through_data else model.lm_head.weight
    with torch.no_grad():
        weight.mul_(2.0)
    with torch.inference_mode():
        assert torch.equal(output.logits(hidden), 2.0 * before)
