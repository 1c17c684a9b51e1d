"""The lean layers give the hidden states of the model's own modules, whatever is asked of them."""

import logging
from collections import Counter

import pytest
import torch
from launches import LLAMA_8B, TINYCOMMA, Launches, counted_launches
from tiny_models import tiny_family, tiny_llama
from triton.runtime.errors import OutOfResources

from anchored.decode.models.attention import row_attention
from anchored.decode.models.backbone import (
    FAMILIES,
    LeanBackbone,
    ModuleBackbone,
    _repeated,
    backbone_of,
    lean_refusal,
)
from anchored.decode.models.capabilities import row_support
from anchored.decode.models.kv_cache import RowCache
from anchored.decode.models.linear import OutputLayer
from anchored.decode.models.row_stream import RowStream
from anchored.kernels import layers

NUM_ROWS = 3
VARIANTS = {
    "biases": {"attention_bias": True, "mlp_bias": True},
    "a key head for each query head": {"num_key_value_heads": 4},
    "llama3 positions": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10_000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
    "yarn positions": {
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0}
    },
}


class Both:
    """The same forwards by both backbones, each over a cache of its own, which is reserved."""

    def __init__(self, model) -> None:
        self.model, self.attention = model, row_attention(model)
        self.backbones = [ModuleBackbone(model), LeanBackbone(model)]
        layers = model.config.num_hidden_layers
        self.caches = [RowCache(layers, NUM_ROWS, 64) for _ in self.backbones]
        for cache in self.caches:
            cache.reserve()
        self.generator = torch.Generator().manual_seed(1)

    @torch.inference_mode()
    def agree(self, rows: list[int], width: int, counts: list[int], *, masked: bool) -> None:
        """masked: with additive masks of rows, which level rows can do without."""
        # Part of a wider tensor, as the chunks of a text are.
        tokens = torch.randint(0, 320, (len(rows), width + 1), generator=self.generator)[:, 1:]
        hidden = []
        for backbone, cache in zip(self.backbones, self.caches, strict=True):
            place = cache.place(rows, width, torch.device("cpu"))
            masks = None
            if masked:
                columns = place.columns, place.num_columns
                masks = self.attention.masks(*columns, self.model.dtype)
            hidden.append(backbone(tokens, place.columns, masks, cache))
            cache.advance(rows, counts)
        self.assert_near(*hidden)

    @torch.inference_mode()
    def agree_at(self, positions: list[list[int]]) -> None:
        """In all rows, at columns that only the device knows."""
        places = torch.tensor(positions)
        tokens = torch.randint(0, 320, places.shape, generator=self.generator)
        both = zip(self.backbones, self.caches, strict=True)
        self.assert_near(*(model.at(tokens, places, cache) for model, cache in both))
        for layer in range(self.model.config.num_hidden_layers):
            for plain, lean in zip(*(c.storage(layer) for c in self.caches), strict=True):
                torch.testing.assert_close(lean, plain, atol=2e-5, rtol=0)

    def assert_near(self, plain: torch.Tensor, lean: torch.Tensor) -> None:
        torch.testing.assert_close(lean, plain, atol=2e-5, rtol=0)


def lean_model(name: str):
    model = tiny_family(name, 1) if name in FAMILIES else tiny_llama(1, **VARIANTS[name])
    model = model.float().eval()
    assert isinstance(backbone_of(model, row_attention(model)), LeanBackbone)
    # New norms are ones and new biases zeros, which would hide whether they are used.
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if "norm" in parameter or "bias" in parameter:
                weight += torch.linspace(-0.5, 0.5, len(weight))
    return model


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_hidden_states_are_those_of_the_modules(name):
    both = Both(lean_model(name))
    both.agree([0, 1, 2], 7, [7, 7, 7], masked=False)  # a prompt
    both.agree([0, 1, 2], 1, [1, 1, 1], masked=False)
    both.agree([0, 1, 2], 3, [3, 1, 2], masked=False)  # causal behind what is there
    both.agree([0, 1, 2], 2, [2, 1, 2], masked=True)  # rows of different lengths
    both.agree([2, 0], 1, [1, 1], masked=True)
    both.agree([1], 20, [20], masked=True)
    both.agree_at([[13], [20], [2]])
    both.agree_at([[14, 15, 16], [20, 21, 22], [0, 1, 2]])


# The interpreter divides by zero in lanes that it discards.
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_the_kernels_of_a_device_give_them_too(monkeypatch):
    monkeypatch.setattr(layers, "resolved_backend", lambda backend, device: "triton")
    both = Both(lean_model("qwen3"))
    both.agree([0, 1, 2], 4, [4, 2, 3], masked=False)
    both.agree_at([[4], [2], [3]])
    both.agree_at([[5, 6], [2, 3], [4, 5]])


def test_heads_are_repeated_in_turn_where_a_device_takes_no_groups():
    states = torch.randn(2, 3, 5, 4)
    assert torch.equal(_repeated(states, 2), states.repeat_interleave(2, 1))


def test_a_model_made_in_inference_mode_can_be_lean():
    with torch.inference_mode():
        model = tiny_llama(1).float()
    both = Both(model)
    both.agree([0, 1, 2], 3, [3, 3, 3], masked=False)
    assert isinstance(backbone_of(model, both.attention), LeanBackbone)


def test_other_models_keep_their_modules():
    refusals = {
        "the family olmo2 is none of llama, mistral, qwen2, qwen3": tiny_family("olmo2", 1).float(),
        "its attention is not full in all layers": tiny_family("mistral, sliding", 1).float(),
        "it uses eager and silu, not sdpa and silu": tiny_family(
            "llama", 1, attn_implementation="eager"
        ).float(),
        "it uses sdpa and gelu, not sdpa and silu": tiny_llama(1, hidden_act="gelu").float(),
        "its weights are not all of a tested dtype on one device": tiny_llama(1).bfloat16(),
        "its layers share weights": sharing_llama(),
        "its module model.layers.1.mlp is not what the family has": hooked_llama(),
        "its module model.layers.0.self_attn.q_proj is not what the family has": adapted_llama(),
    }
    for reason, model in refusals.items():
        assert lean_refusal(model, row_attention(model)) == reason
        assert isinstance(backbone_of(model, row_attention(model)), ModuleBackbone)
    mixed = tiny_llama(1).float()
    mixed.model.layers[0].mlp.double()
    weights = "its weights are not all of a tested dtype on one device"
    assert lean_refusal(mixed, row_attention(mixed)) == weights


def sharing_llama():
    model = tiny_llama(1).float()
    first, second = model.model.layers
    second.mlp.up_proj.weight = first.mlp.up_proj.weight
    return model


@pytest.mark.parametrize("fault", [0.1, RuntimeError("out of resources"), OutOfResources(9, 1, "")])
def test_lean_layers_that_differ_or_fail_are_left_to_the_modules(fault, monkeypatch, caplog):
    exact = LeanBackbone._rotation

    def wrong(backbone, positions):
        if isinstance(fault, Exception):
            raise fault
        cos, sin = exact(backbone, positions)
        return cos, sin + fault

    model = tiny_llama(1).float()
    monkeypatch.setattr(LeanBackbone, "_rotation", wrong)
    with caplog.at_level(logging.WARNING):
        support = row_support(model, "safe", OutputLayer(model, 320))
    assert support.attention.keeps_modules and not support.is_alone
    (line,) = caplog.messages
    start = "the safe model (llama) decodes by the modules of transformers: in rows it"
    assert line.startswith(start), line
    stream = RowStream(
        model, support.attention, num_rows=1, max_length=9, output=OutputLayer(model, 320)
    )
    expected = model(torch.tensor([[5, 6]])).logits[:, -1]
    torch.testing.assert_close(stream.read([[5, 6]], [0]).logits, expected, atol=1e-5, rtol=0)


def hooked_llama():
    model = tiny_llama(1).float()
    model.model.layers[1].mlp.register_forward_hook(lambda module, given, out: 2 * out)
    return model


def adapted_llama():
    class Adapted(torch.nn.Module):
        """As adapters are: the layer with its weight, and something more."""

        def __init__(self, base) -> None:
            super().__init__()
            self.base, self.weight, self.bias = base, base.weight, base.bias

        def forward(self, hidden):
            return 2 * self.base(hidden)

    model = tiny_llama(1).float()
    attention = model.model.layers[0].self_attn
    attention.q_proj = Adapted(attention.q_proj)
    return model


@pytest.fixture
def launches(monkeypatch) -> Launches:
    """What a step launches on a device."""
    return counted_launches(monkeypatch)


def launched(launches: Launches, num_layers: int, num_new: int = 1, **sizes) -> list[str]:
    """By a step of 4 rows, hidden states only."""
    meta = torch.device("meta")
    with meta:
        backbone = LeanBackbone(tiny_llama(1, layers=num_layers, **sizes).bfloat16())
        tokens = torch.zeros(4, num_new, dtype=torch.int64)
    cache = RowCache(num_layers, 4, 64)
    cache.reserve()
    cache.place([0, 1, 2, 3], num_new, meta)
    backbone(tokens, tokens, None, cache)
    launches.names.clear()
    with launches, torch.no_grad():  # inference mode would not take operations apart
        backbone.at(tokens, tokens, cache)
    return launches.names.copy()


def test_a_step_on_a_device_launches_ten_kernels_a_layer(launches):
    few, many = (launched(launches, num_layers) for num_layers in (2, 3))
    a_layer = Counter(many) - Counter(few)
    assert a_layer == {"mm": 4, "triton": 6}
    # Embeddings, rows, angles, their cosines and sines, the last norm.
    assert len(few) - 2 * 10 == 6
    assert len(launched(launches, 32, **LLAMA_8B)) + len(launched(launches, 24, **TINYCOMMA)) == 572
    # With drafts there are as many but one, which puts the heads of each token side by side.
    drafted = [launched(launches, num_layers, num_new=3) for num_layers in (2, 3)]
    assert Counter(drafted[1]) - Counter(drafted[0]) == {"mm": 4, "triton": 6, "clone": 1}
