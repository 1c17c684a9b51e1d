"""Linear layers fused, plain or packed, read by weight or run: the same numbers, none twice."""

import pytest
import torch
from tiny_models import tiny_llama
from torch import nn
from transformers import LlamaForCausalLM

from anchored.decode.models import linear
from anchored.decode.models.backbone import LeanBackbone, ModuleBackbone
from anchored.decode.models.kv_cache import RowCache
from anchored.decode.models.linear import (
    ROWS_PER_TILE,
    Linear,
    OutputLayer,
    PackedLinear,
    fused,
    packs_layers,
)


def num_bytes(model) -> int:
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage() for p in model.parameters()}
    return sum(storage.nbytes() for storage in storages.values())


def test_weights_of_one_input_lie_in_one_tensor_and_stay_the_modules_own(tmp_path):
    model = tiny_llama(1, tie_word_embeddings=True).float()
    attention = model.model.layers[0].self_attn
    modules = (attention.q_proj, attention.k_proj, attention.v_proj)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    parameter, size = attention.k_proj.weight, num_bytes(model)
    LeanBackbone(model)
    assert num_bytes(model) == size and attention.k_proj.weight is parameter
    assert model.lm_head.weight is model.model.embed_tokens.weight
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
    whole = fused(*modules, packs=False).weight
    assert torch.equal(whole, torch.cat([module.weight for module in modules]))
    assert fused(*modules, packs=False).weight.data_ptr() == whole.data_ptr()
    with torch.no_grad():
        attention.v_proj.weight.fill_(3.0)
    assert (whole[-16:] == 3.0).all() and not (whole[:-16] == 3.0).any()
    model.save_pretrained(tmp_path)  # which refuses tensors that it takes for one
    saved = type(model).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(saved[name], weight) for name, weight in model.state_dict().items())
    attention.q_proj.weight = nn.Parameter(torch.zeros_like(attention.q_proj.weight))
    assert (fused(*modules, packs=False).weight[:32] == 0.0).all()
    assert not (whole[:32] == 0.0).any()


@pytest.fixture
def small_are_packed(monkeypatch) -> None:
    monkeypatch.setattr(linear, "LEAST_PACKED", 1)


@pytest.mark.usefixtures("small_are_packed")
def test_biases_are_fused_and_missing_ones_are_zeros():
    modules = [nn.Linear(8, size, bias=bias) for size, bias in [(3, True), (2, False), (4, True)]]
    hidden = torch.randn(5, 8)
    expected = torch.cat([module(hidden) for module in modules], -1)
    for packs in (False, True):
        torch.testing.assert_close(fused(*modules, packs=packs)(hidden), expected)


def test_layers_are_packed_where_the_copies_fit_in_a_quarter_of_the_free_memory(monkeypatch):
    modules = [nn.Linear(32, 64, bias=False) for _ in range(2)]  # 16 KiB
    free = {"bytes": 4 * (1 << 14) - 1}
    monkeypatch.setattr(linear, "free_bytes", lambda: free["bytes"])
    assert not packs_layers(modules)
    free["bytes"] += 1
    assert packs_layers(modules) and not packs_layers([layer.double() for layer in modules])
    modules = [layer.float() for layer in modules]
    assert isinstance(fused(*modules, packs=True), Linear)
    monkeypatch.setattr(linear, "LEAST_PACKED", 2 * 32 * 64)
    assert isinstance(fused(*modules, packs=True), PackedLinear)
    free["bytes"] = 0  # the copies that are there may have taken it
    assert packs_layers(modules)


@torch.inference_mode()
def test_half_as_large_weights_are_packed_for_several_rows(monkeypatch):
    layer, hidden = nn.Linear(32, 64), torch.randn(5, 32)
    monkeypatch.setattr(linear, "LEAST_PACKED", 2 * 32 * 64 + 1)
    assert isinstance(fused(layer, packs=True), Linear)
    monkeypatch.setattr(linear, "LEAST_PACKED", 2 * 32 * 64)
    product, plain = fused(layer, packs=True), fused(layer, packs=False)
    assert isinstance(product, PackedLinear)
    torch.testing.assert_close(product(hidden), plain(hidden))
    for one_row in (hidden[:1], hidden[0], hidden[None, :1]):
        assert torch.equal(product(one_row), plain(one_row))
    product._product = lambda *_: pytest.fail("a single row was packed")
    product(hidden[:1])


def test_free_memory_is_less_than_the_machines(monkeypatch):
    assert 0 < linear.free_bytes() < 1 << 50
    monkeypatch.setattr(linear, "MEMORY_FILE", "/nowhere")
    assert linear.free_bytes() == 0


@pytest.mark.usefixtures("small_are_packed")
@torch.inference_mode()
def test_lean_layers_are_packed_and_those_without_room_are_not(monkeypatch):
    model = tiny_llama(1).float()
    hidden = []
    for backbone, free in [(ModuleBackbone, 0), (LeanBackbone, 0), (LeanBackbone, 1 << 40)]:
        monkeypatch.setattr(linear, "free_bytes", lambda free=free: free)
        cache = RowCache(2, 1, 8)
        cache.place([0], 3, torch.device("cpu"))
        tokens, positions = torch.tensor([[5, 6, 7]]), torch.arange(3)[None]
        computed = backbone(model)
        hidden.append(computed(tokens, positions, None, cache))
        if backbone is LeanBackbone:
            kind = PackedLinear if free else Linear
            products = [layer[place] for layer in computed._layers for place in (1, 3, 5, 6)]
            assert [type(product) for product in products] == [kind] * 8
    for lean in hidden[1:]:
        torch.testing.assert_close(lean, hidden[0], atol=2e-5, rtol=0)


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


@torch.inference_mode()
def test_a_layer_that_cannot_be_read_is_run_tile_by_tile():
    _, opaque = layers(bias=False)
    sizes: list[int] = []
    opaque._layer.register_forward_hook(lambda layer, given, out: sizes.append(len(out)))
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
    packed, plain = (OutputLayer(model, 300, packs=packs) for packs in (True, False))
    hidden = torch.randn(3, 5, 32, dtype=dtype)
    error = (packed.logits(hidden) - plain.logits(hidden)).abs().max()
    assert packed.logits(hidden).shape == (3, 5, 300)
    # 32 products and a bias, each below 4 in size, rounded once a sum.
    assert error <= 40 * torch.finfo(dtype).eps * hidden.abs().max()


@torch.inference_mode()
def test_a_packed_row_has_the_same_bits_among_any_others():
    output = OutputLayer(packing_model(torch.float32, bias=True), 300, packs=True)
    hidden = torch.randn(33, 32)
    logits = output.logits(hidden)
    hidden[7] = torch.nan
    for rows in (slice(0, 1), slice(2, 4), slice(3, 7), slice(8, 33)):
        assert torch.equal(output.logits(hidden[rows]), logits[rows])
    assert output.logits(hidden).isnan().any(-1).nonzero().tolist() == [[7]]


@pytest.mark.parametrize("through_data", [False, True])
def test_a_changed_weight_is_packed_anew(through_data):
    model = packing_model(torch.float32, bias=False)
    output, hidden = OutputLayer(model, 300, packs=True), torch.randn(2, 32)
    with torch.inference_mode():
        before = output.logits(hidden)
    weight = model.lm_head.weight.data if through_data else model.lm_head.weight
    with torch.no_grad():
        weight.mul_(2.0)
    with torch.inference_mode():
        assert torch.equal(output.logits(hidden), 2.0 * before)


@pytest.mark.usefixtures("small_are_packed")
def test_a_changed_part_of_a_packed_product_is_seen_by_the_next_backbone():
    model = tiny_llama(1).float()
    attention = model.model.layers[0].self_attn
    hidden = torch.randn(1, 32)
    before = LeanBackbone(model)._layers[0].heads(hidden)
    attention.k_proj.weight.data.mul_(2.0)
    after = LeanBackbone(model)._layers[0].heads(hidden)
    expected = torch.cat([before[:, :32], 2.0 * before[:, 32:48], before[:, 48:]], 1)
    torch.testing.assert_close(after, expected)
