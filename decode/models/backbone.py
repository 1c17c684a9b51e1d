"""A model without its output layer: tokens to hidden states over a row cache."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from ...kernels.layers import HeadSplit, add_and_norm, gated, rotated_heads, store_heads
from .attention import MASK_BY_TYPE, Masks, RowAttention, is_hooked
from .kv_cache import RowCache
from .linear import Linear, PackedLinear, fused, packs_layers

# R rows of one forward, T new columns, N = R T tokens, H query heads, G key heads, C columns of
# the cache, D hidden size, E head size.

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Norm, attention, norm, gated layer; rotary positions; biases and norms of heads or none."""

DTYPES = {"cpu": (torch.float32,), "cuda": (torch.float32, torch.bfloat16, torch.float16)}
"""By device, those that the lean layers are tested in."""


class Backbone(Protocol):
    """What computes hidden states of new columns."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        """(R, T, D) of token_ids, positions (R, T) int64, after `RowCache.place`.

        masks: of `RowAttention`; None where new columns see all before them, and each other
        causally.
        """

    def at(self, token_ids: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        """The same in all rows of the cache, at columns that only the device knows.

        Each query sees what its row holds up to its own column. Nothing waits for the device, and
        no tensor's size depends on values: a CUDA graph may capture it. The cache must be reserved
        and have stored something.
        """


class ModuleBackbone:
    """The modules of transformers as they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        # get_decoder() of Llama 4 is the whole model.
        is_gpt2 = model.config.model_type == "gpt2"
        self._modules = model.get_submodule("transformer" if is_gpt2 else "model")
        self._config = model.config

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        hidden: Tensor = self._modules(
            input_ids=token_ids,
            attention_mask=masks,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        return hidden

    def at(self, token_ids: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        from .column_attention import attends_by_column, places  # needs Triton

        cache.place_at(positions)
        mask = places(positions)
        # A learned position behind the context would be out of range.
        within = positions.clamp(max=self._config.max_position_embeddings - 1)
        with attends_by_column(self._config):
            masks = {"full_attention": mask} if self._config.model_type in MASK_BY_TYPE else mask
            return self(token_ids, within, masks, cache)


class _Norm(NamedTuple):
    weight: Tensor
    """(D,)."""
    eps: float

    def __call__(self, hidden: Tensor, update: Tensor | None) -> Tensor:
        """(N, D) of hidden (N, D), to which the update is added in place."""
        return add_and_norm(hidden, update, self.weight, self.eps)


Product = Linear | PackedLinear


class _Layer(NamedTuple):
    """What one layer is made of; the tensors are the model's own."""

    attention_norm: _Norm
    heads: Product
    """Queries, keys and values."""
    split: HeadSplit
    output: Product
    gated_norm: _Norm
    gate_up: Product
    down: Product


Attend = Callable[[int, HeadSplit, Tensor], Tensor]
"""(N, H E) of a layer's number and its product of heads, which are stored on the way."""


class LeanBackbone:
    """A `Backbone` of few operations: the host's work takes as long as small products.

    Computes with the model's own weights. Those of one input are views of one tensor from here on
    (see `fused`): the modules compute what they did, and nothing stands twice, but for packed
    copies on a CPU with room for them (see `packs_layers`). Results differ from those of the
    modules by rounding. What is done to the model later, other weights, hooks and other modules in
    place of its own, is seen when the next backbone is asked for (`backbone_of`): by the next
    stream that is opened.
    """

    def __init__(self, model: PreTrainedModel, *, packs: bool | None = None) -> None:
        """model: one that `lean_refusal` has nothing against. packs: None where memory allows it,
        see `packs_layers`."""
        base: Any = model.get_submodule("model")
        self._embeddings, self._norm = base.embed_tokens.weight, _norm(base.norm)
        products = [m for name, m in base.layers.named_modules() if name.endswith("_proj")]
        packs = packs_layers(products) if packs is None else packs
        make = partial(_layer, config=model.config, packs=packs)
        self._layers = [make(module) for module in base.layers]
        frequencies = base.rotary_emb.inv_freq.float()
        # The sines of the first half, and they alone, have the other sign in a rotation.
        self._frequencies = torch.cat([-frequencies, frequencies])
        self._scale: float = base.rotary_emb.attention_scaling

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        mask = masks["full_attention"] if isinstance(masks, dict) else masks
        shape, (cos, sin) = token_ids.shape, self._rotation(positions)

        def attend(index: int, split: HeadSplit, product: Tensor) -> Tensor:
            new = rotated_heads(product, cos, sin, split)
            query, key, value = (
                heads.view(*shape, -1, split.size).transpose(1, 2) for heads in new
            )
            keys, values = cache.update(key, value, index)
            attended = _attended(query, keys, values, mask)
            return attended.transpose(1, 2).reshape(product.shape[0], -1)

        return self._hidden(token_ids, attend)

    def at(self, token_ids: Tensor, positions: Tensor, cache: RowCache) -> Tensor:
        from .column_attention import attended  # needs Triton

        shape, (cos, sin) = token_ids.shape, self._rotation(positions)
        rows = torch.arange(len(positions), device=positions.device)

        def attend(index: int, split: HeadSplit, product: Tensor) -> Tensor:
            storage = cache.storage(index)
            query = store_heads(product, cos, sin, split, storage, positions)
            by_head = query.view(*shape, -1, split.size).transpose(1, 2)
            return attended(by_head, *storage, positions, rows).reshape(len(product), -1)

        return self._hidden(token_ids, attend)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, (N, E) float32 each, for all layers; positions: (R, T)."""
        angles = positions.reshape(-1, 1) * self._frequencies
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self._scale == 1.0 else (cos * self._scale, sin * self._scale)

    def _hidden(self, token_ids: Tensor, attend: Attend) -> Tensor:
        """(R, T, D) of token_ids (R, T)."""
        hidden = functional.embedding(token_ids.flatten(), self._embeddings)
        update = None
        for index, layer in enumerate(self._layers):
            # Without names, so that what a long prompt makes is free as soon as it was read.
            update = layer.output(
                attend(index, layer.split, layer.heads(layer.attention_norm(hidden, update)))
            )
            update = layer.down(gated(layer.gate_up(layer.gated_norm(hidden, update))))
        return self._norm(hidden, update).view(*token_ids.shape, -1)


def lean_refusal(model: PreTrainedModel, attention: RowAttention) -> str:
    """Why a model needs the modules of transformers, "" if it does not."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"the family {config.model_type} is none of {', '.join(FAMILIES)}"
    if attention.keeps_modules:
        return "its lean layers differed from its modules"
    if attention.layer_types != ("full_attention",):
        return "its attention is not full in all layers"
    if (config._attn_implementation, config.hidden_act) != ("sdpa", "silu"):
        return f"it uses {config._attn_implementation} and {config.hidden_act}, not sdpa and silu"
    weights = list(model.parameters())
    (dtype, device), *others = {(weight.dtype, weight.device) for weight in weights}
    is_tested = dtype in DTYPES.get(device.type, ()) and not others
    if not is_tested or any(type(weight) is not nn.Parameter for weight in weights):
        return "its weights are not all of a tested dtype on one device"
    if device.type == "cuda" and find_spec("triton") is None:
        return "triton is not installed"
    if changed := [name for name, module in model.named_modules() if _is_changed(name, module)]:
        return f"its module {changed[0]} is not what the family has"
    named = model.named_parameters(remove_duplicate=False)
    products = [weight for name, weight in named if "_proj." in name]
    return "its layers share weights" if len({*products}) < len(products) else ""


def _is_changed(name: str, module: nn.Module) -> bool:
    """Whether a module has hooks, or is of a class that the family does not have there."""
    kinds = {"_proj": nn.Linear, "embed_tokens": nn.Embedding}
    is_other = any(name.endswith(end) and type(module) is not kind for end, kind in kinds.items())
    is_foreign = not type(module).__module__.startswith(("torch.nn.", "transformers."))
    return is_other or is_foreign or is_hooked(module)


def _layer(module: Any, config: Any, *, packs: bool) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    has_norms = hasattr(attention, "q_norm")
    split = HeadSplit(
        num_heads=config.num_attention_heads,
        num_key_heads=config.num_key_value_heads,
        size=attention.head_dim,
        norms=(attention.q_norm.weight, attention.k_norm.weight) if has_norms else None,
        eps=attention.q_norm.variance_epsilon if has_norms else 0.0,
    )
    return _Layer(
        attention_norm=_norm(module.input_layernorm),
        heads=fused(attention.q_proj, attention.k_proj, attention.v_proj, packs=packs),
        split=split,
        output=fused(attention.o_proj, packs=packs),
        gated_norm=_norm(module.post_attention_layernorm),
        gate_up=fused(mlp.gate_proj, mlp.up_proj, packs=packs),
        down=fused(mlp.down_proj, packs=packs),
    )


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, module.variance_epsilon)


def _attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """(R, H, T, head size) of query (R, H, T, head size); keys, values (R, G, C, head size)."""
    num_new, num_columns = query.shape[2], keys.shape[2]
    is_causal = mask is None and num_new == num_columns
    if mask is None and 1 < num_new < num_columns:
        mask = query.new_ones(num_new, num_columns, dtype=torch.bool).tril(num_columns - num_new)
    group = query.shape[1] // keys.shape[1]
    if query.is_cuda and (mask is not None or query.dtype == torch.float32):
        # Only flash attention takes groups there, and it takes no mask and no float32; what is left
        # for them would hold all scores.
        keys, values = (_repeated(states, group) for states in (keys, values))
    return functional.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=is_causal,
        enable_gqa=query.shape[1] != keys.shape[1],
    )


def _repeated(states: Tensor, group: int) -> Tensor:
    """(R, G group, C, head size): each head of (R, G, C, head size) so many times in turn."""
    return states[:, :, None].expand(-1, -1, group, -1, -1).flatten(1, 2)


def read_prompts(
    backbone: Backbone,
    cache: RowCache,
    rows: Sequence[int],
    token_ids: Tensor,
    lengths: Sequence[int],
) -> Tensor:
    """Hidden states (R, T, D) of prompts read into empty rows; token_ids (R, T), padded behind."""
    place = cache.place(rows, token_ids.shape[1], token_ids.device)
    assert place.is_fresh, f"rows {rows} were not freed"
    # Nothing lies before these tokens and padding only after them: no mask is needed, which leaves
    # the fused attention kernels usable.
    hidden = backbone(token_ids, place.columns, None, cache)
    cache.advance(rows, lengths)
    return hidden


def backbone_of(model: PreTrainedModel, attention: RowAttention) -> Backbone:
    """The one with the least work on the host that computes this model."""
    return ModuleBackbone(model) if lean_refusal(model, attention) else LeanBackbone(model)
