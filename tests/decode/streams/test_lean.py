"""Lean layers: which models get them, and what is left to transformers' modules.

Their logits are compared in test_row_stream.
"""

import logging

import pytest
import torch
from tiny_models import tiny_family, tiny_llama
from triton.runtime.errors import OutOfResources

from anchored.decode.streams import lean
from anchored.decode.streams.capabilities import row_attention, row_support
from anchored.decode.streams.lean import LeanBackbone, PackedLinear
from anchored.decode.streams.row_stream import ModelRunner, ModuleBackbone, RowStream


def backbone_of(model):
    return ModelRunner(model, 320).backbone(row_attention(model))


def test_windows_keep_their_modules_as_the_check_of_a_pair_has_short_texts():
    assert isinstance(backbone_of(tiny_family("mistral, sliding", 1).float()), ModuleBackbone)


def test_layers_are_packed_once_and_the_user_s_model_is_not_touched():
    """A model that changes afterwards is refused: see test_model_state."""
    model = tiny_llama(1, tie_word_embeddings=True).float()
    before = {name: (w.data_ptr(), w.clone()) for name, w in model.state_dict().items()}
    runner, attention = ModelRunner(model, 320), row_attention(model)
    first = runner.backbone(attention)
    for name, weight in model.state_dict().items():
        pointer, values = before[name]
        assert weight.data_ptr() == pointer and torch.equal(weight, values)
    assert runner.backbone(attention) is first
    assert runner.in_order(torch.arange(300)).backbone(attention) is first


@pytest.mark.parametrize("width", [48, 4_099])
def test_a_row_has_the_same_bits_whatever_rows_are_next_to_it(width):
    generator = torch.Generator().manual_seed(width)
    weight, bias, rows = (
        torch.randn(*s, generator=generator) for s in ((64, width), (64,), (70, width))
    )
    layer = PackedLinear(weight, bias)
    together = layer(rows)
    torch.testing.assert_close(together, rows @ weight.T + bias, atol=1e-3, rtol=0)
    rows[17] = torch.nan
    for num_rows in (1, 2, 3, 4, 5, 17):
        assert torch.equal(layer(rows[:num_rows]), together[:num_rows])
    assert layer(rows).isnan().any(-1).nonzero().tolist() == [[17]]


def test_without_room_for_packed_weights_the_modules_are_run(monkeypatch):
    model = tiny_llama(1).float()
    packed = [weight for name, weight in model.named_parameters() if "_proj." in name]
    num_bytes = sum(weight.nbytes for weight in packed)

    class Memory:
        available = 4 * num_bytes - 1

    monkeypatch.setattr(lean.psutil, "virtual_memory", Memory)
    assert isinstance(backbone_of(model), ModuleBackbone)
    Memory.available += 1
    assert isinstance(backbone_of(model), LeanBackbone)


@pytest.mark.parametrize("fault", [0.1, OutOfResources(9, 1, "")])
def test_lean_layers_that_differ_or_fail_are_left_to_the_modules(fault, monkeypatch, caplog):
    class Wrong(PackedLinear):
        def __init__(self, weight, bias):
            super().__init__(weight, bias)
            exact = self.product

            def product(rows):
                if isinstance(fault, Exception):
                    raise fault
                return exact(rows) + fault

            self.product = product

    model = tiny_llama(1).float()
    monkeypatch.setattr(lean, "PackedLinear", Wrong)
    with caplog.at_level(logging.WARNING):
        attention, is_alone = row_support(ModelRunner(model, 320), "safe")
    assert attention.keeps_modules and not is_alone
    (line,) = caplog.messages
    start = "the safe model (llama) decodes by the modules of transformers: in rows it"
    assert line.startswith(start), line
    stream = RowStream(ModelRunner(model, 320), attention, num_rows=1, max_length=9)
    expected = model(torch.tensor([[5, 6]])).logits[:, -1]
    torch.testing.assert_close(stream.read([[5, 6]], [0]).logits, expected, atol=1e-5, rtol=0)
