"""The output layer of a runner, read by weight, packed or run: the same numbers, none left out."""

import pytest
import torch
from tiny_models import tiny_llama
from torch import nn
from transformers import LlamaForCausalLM

from anchored.decode.models.row_stream import ROWS_PER_TILE, ModelRunner


class Opaque(nn.Linear):
    """A layer whose weight cannot be read as it stands, like a quantised one."""


def layers(bias: bool) -> tuple[ModelRunner, ModelRunner]:
    """(read by weight, read by forward) over 300 of 320 tokens."""
    model, opaque = tiny_llama(1), tiny_llama(1)
    model.lm_head = nn.Linear(32, 320, bias=bias).double()
    opaque.lm_head = Opaque(32, 320, bias=bias).double()
    opaque.lm_head.load_state_dict(model.lm_head.state_dict())
    return ModelRunner(model, 300), ModelRunner(opaque, 300)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 2 * ROWS_PER_TILE + 1])
@torch.inference_mode()
def test_both_ways_leave_the_padding_out_and_agree(bias, num_rows):
    hidden = torch.randn(num_rows, 32, dtype=torch.float64)
    token_ids = torch.randint(300, (num_rows,))
    by_weight, by_forward = (layer.token_log_probs(hidden, token_ids) for layer in layers(bias))
    logits = layers(bias)[0].logits(hidden)
    assert logits.shape == (num_rows, 300)
    torch.testing.assert_close(by_weight, by_forward)


@torch.inference_mode()
def test_a_layer_that_cannot_be_read_is_run_tile_by_tile():
    _, opaque = layers(bias=False)
    sizes: list[int] = []
    opaque._output_layer.register_forward_hook(lambda layer, given, out: sizes.append(len(out)))
    opaque.token_log_probs(
        torch.zeros(2 * ROWS_PER_TILE + 1, 32).double(), torch.zeros(2 * ROWS_PER_TILE + 1).long()
    )
    assert sizes == [ROWS_PER_TILE, ROWS_PER_TILE, 1]


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
    output = ModelRunner(packing_model(torch.float32, bias=True), 300, packs=True)
    hidden = torch.randn(33, 32)
    logits = output.logits(hidden)
    hidden[7] = torch.nan
    for rows in (slice(0, 1), slice(2, 4), slice(3, 7), slice(8, 33)):
        assert torch.equal(output.logits(hidden[rows]), logits[rows])
    assert output.logits(hidden).isnan().any(-1).nonzero().tolist() == [[7]]


@pytest.mark.parametrize("through_data", [False, True])
def test_a_changed_weight_is_packed_anew(through_data):
    model = packing_model(torch.float32, bias=False)
    output, hidden = ModelRunner(model, 300, packs=True), torch.randn(2, 32)
    with torch.inference_mode():
        before = output.logits(hidden)
    weight = model.lm_head.weight.data if through_data else model.lm_head.weight
    with torch.no_grad():
        weight.mul_(2.0)
    with torch.inference_mode():
        assert torch.equal(output.logits(hidden), 2.0 * before)
