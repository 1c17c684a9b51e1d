"""The lean layers give the hidden states of the model's own modules, whatever is asked of them."""

import pytest
import torch
from tiny_models import tiny_family, tiny_llama

from anchored.decode.models.attention import row_attention
from anchored.decode.models.backbone import (
    FAMILIES,
    LeanBackbone,
    ModuleBackbone,
    backbone_of,
    lean_refusal,
)
from anchored.decode.models.kv_cache import RowCache

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
    """The same forwards by both backbones, each over a cache of its own."""

    def __init__(self, model) -> None:
        self.model, self.attention = model, row_attention(model)
        self.backbones = [ModuleBackbone(model), LeanBackbone(model)]
        layers = model.config.num_hidden_layers
        self.caches = [RowCache(layers, NUM_ROWS, 64) for _ in self.backbones]
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
        plain, lean = hidden
        torch.testing.assert_close(lean, plain, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", [*FAMILIES, *VARIANTS])
def test_hidden_states_are_those_of_the_modules(name):
    model = tiny_family(name, 1) if name in FAMILIES else tiny_llama(1, **VARIANTS[name])
    model = model.float().eval()
    assert isinstance(backbone_of(model, row_attention(model)), LeanBackbone)
    # New norms are ones and new biases zeros, which would hide whether they are used.
    with torch.no_grad():
        for parameter, weight in model.named_parameters():
            if "norm" in parameter or "bias" in parameter:
                weight += torch.linspace(-0.5, 0.5, len(weight))
    both = Both(model)
    both.agree([0, 1, 2], 7, [7, 7, 7], masked=False)  # a prompt
    both.agree([0, 1, 2], 1, [1, 1, 1], masked=False)
    both.agree([0, 1, 2], 3, [3, 1, 2], masked=False)  # causal behind what is there
    both.agree([0, 1, 2], 2, [2, 1, 2], masked=True)  # rows of different lengths
    both.agree([2, 0], 1, [1, 1], masked=True)
    both.agree([1], 20, [20], masked=True)


def test_other_models_keep_their_modules():
    refusals = {
        "the family olmo2 is none of llama, mistral, qwen2, qwen3": tiny_family("olmo2", 1).float(),
        "its attention is not full in all layers": tiny_family("mistral, sliding", 1).float(),
        "it uses eager and silu, not sdpa and silu": tiny_family(
            "llama", 1, attn_implementation="eager"
        ).float(),
        "it uses sdpa and gelu, not sdpa and silu": tiny_llama(1, hidden_act="gelu").float(),
        "its weights are not all float32 on the CPU": tiny_llama(1).bfloat16(),
        "its module model.layers.1.mlp is not what the family has": hooked_llama(),
        "its module model.layers.0.self_attn.q_proj is not what the family has": adapted_llama(),
    }
    for reason, model in refusals.items():
        assert lean_refusal(model, row_attention(model)) == reason
        assert isinstance(backbone_of(model, row_attention(model)), ModuleBackbone)


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
