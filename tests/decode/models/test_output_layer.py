"""The output layer gives the same log-probabilities by weight and by its own forward."""

import pytest
import torch
from tiny_models import tiny_llama
from torch import nn

from anchored.decode.models import linear
from anchored.decode.models.linear import ROWS_PER_TILE, OutputLayer


class Opaque(nn.Linear):
    """A layer whose weight cannot be read as it stands, like a quantised one."""


def layers(bias: bool) -> tuple[OutputLayer, OutputLayer]:
    """(read by weight, read by forward) over 300 of 320 tokens."""
    model, opaque = tiny_llama(1), tiny_llama(1)
    model.lm_head = nn.Linear(32, 320, bias=bias).double()
    opaque.lm_head = Opaque(32, 320, bias=bias).double()
    opaque.lm_head.load_state_dict(model.lm_head.state_dict())
    return OutputLayer(model, 300), OutputLayer(opaque, 300)


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


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [3, ROWS_PER_TILE + 1])
@torch.inference_mode()
def test_tiles_are_the_logits_in_the_order_of_the_tokens(bias, num_rows, monkeypatch):
    monkeypatch.setattr(linear, "COLUMNS_PER_TILE", 128)
    hidden, token_ids = torch.randn(num_rows, 32, dtype=torch.float64), torch.randperm(300)
    for layer in layers(bias):
        firsts, tiles = zip(*layer.tiles(hidden, token_ids), strict=True)
        assert firsts == (0, 128, 256)
        logits = layers(bias)[0].logits(hidden)
        torch.testing.assert_close(torch.cat(tiles, 1), logits[:, token_ids])


@torch.inference_mode()
def test_a_layer_that_cannot_be_read_is_run_tile_by_tile():
    _, opaque = layers(bias=False)
    sizes: list[int] = []
    opaque._layer.register_forward_hook(lambda layer, given, out: sizes.append(len(out)))
    opaque.token_log_probs(
        torch.zeros(2 * ROWS_PER_TILE + 1, 32).double(), torch.zeros(2 * ROWS_PER_TILE + 1).long()
    )
    assert sizes == [ROWS_PER_TILE, ROWS_PER_TILE, 1]
