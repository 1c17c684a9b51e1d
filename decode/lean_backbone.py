"""The layers of a Llama-like model on the CPU with few operations around its matrix products."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from .kv_cache import RowCache
from .rotary_table import RotaryTable, rotated
from .row_attention import RowAttention

# R rows of one forward, T new columns, H query heads, G key heads, C columns of the cache, D hidden
# size.

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Norm, attention, norm, gated layer; rotary positions; biases and norms of heads or none."""


class _Norm(NamedTuple):
    """A root mean square norm x w / sqrt(mean(x^2) + eps), with sqrt(D) taken out of the root."""

    weight: Tensor
    """(D,), w sqrt(D)."""
    floor: Tensor
    """(), sqrt(eps D)."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., D) of (..., D)."""
        norm = torch.linalg.vector_norm(hidden, dim=-1, keepdim=True)
        return (hidden / torch.hypot(norm, self.floor)).mul_(self.weight)


class _Layer(NamedTuple):
    """What one layer is made of, the linear modules those of the model."""

    attention_norm: _Norm
    query: nn.Module
    key: nn.Module
    value: nn.Module
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: nn.Module
    gated_norm: _Norm
    gated: nn.Module


class LeanBackbone:
    """A `Backbone` for small models, in which the host's work takes as long as the products.

    Calls the model's own linear modules, so that their weights exist once; what lies between them
    is done by few operations of torch. Results differ from those of the modules by rounding.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """model: one that `lean_refusal` has nothing against."""
        base: Any = model.get_submodule("model")
        self._embed, self._norm = base.embed_tokens, _norm(base.norm)
        self._layers = [_layer(module) for module in base.layers]
        self._rotary = RotaryTable(base.rotary_emb)
        self._head_size = base.layers[0].self_attn.head_dim

    def __call__(
        self,
        token_ids: Tensor,
        positions: Tensor,
        masks: Tensor | dict[str, Tensor] | None,
        cache: RowCache,
    ) -> Tensor:
        shape = token_ids.shape
        cos, sin = self._rotary(positions)
        mask = masks["full_attention"] if isinstance(masks, dict) else masks
        hidden = self._embed(token_ids.flatten())
        for index, layer in enumerate(self._layers):
            normed = layer.attention_norm(hidden)
            query = rotated(self._heads(layer.query, layer.query_norm, normed, shape), cos, sin)
            key = rotated(self._heads(layer.key, layer.key_norm, normed, shape), cos, sin)
            value = self._heads(layer.value, None, normed, shape)
            keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), index)
            heads = _attended(query.transpose(1, 2), keys, values, mask)
            hidden = hidden + layer.output(heads.transpose(1, 2).reshape(len(hidden), -1))
            hidden = hidden + layer.gated(layer.gated_norm(hidden))
        return self._norm(hidden).view(*shape, -1)

    def _heads(
        self, linear: nn.Module, norm: _Norm | None, hidden: Tensor, shape: torch.Size
    ) -> Tensor:
        """(R, T, heads, head size) of (R * T, D)."""
        heads: Tensor = linear(hidden).view(*shape, -1, self._head_size)
        return heads if norm is None else norm(heads)


def lean_refusal(model: PreTrainedModel, attention: RowAttention) -> str:
    """Why a model needs the modules of transformers, "" if it does not."""
    if model.config.model_type not in FAMILIES:
        return f"the family {model.config.model_type} is none of {', '.join(FAMILIES)}"
    if attention.layer_types != ("full_attention",):
        return "its attention is not full in all layers"
    if model.config._attn_implementation != "sdpa":
        return f"its attention is {model.config._attn_implementation}"
    weights = model.parameters()
    if not all(type(w) is nn.Parameter and w.dtype == torch.float32 and w.is_cpu for w in weights):
        return "its weights are not all float32 on the CPU"
    return ""


def _layer(module: nn.Module) -> _Layer:
    attention = module.get_submodule("self_attn")
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (None if norm is None else _norm(norm) for norm in norms)
    return _Layer(
        attention_norm=_norm(module.get_submodule("input_layernorm")),
        query=attention.get_submodule("q_proj"),
        key=attention.get_submodule("k_proj"),
        value=attention.get_submodule("v_proj"),
        query_norm=query_norm,
        key_norm=key_norm,
        output=attention.get_submodule("o_proj"),
        gated_norm=_norm(module.get_submodule("post_attention_layernorm")),
        gated=module.get_submodule("mlp"),
    )


def _norm(module: Any) -> _Norm:
    weight, size = module.weight, module.weight.numel()
    return _Norm(weight * math.sqrt(size), torch.tensor(math.sqrt(module.variance_epsilon * size)))


def _attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """(R, H, T, head size) of query (R, H, T, head size); keys, values (R, G, C, head size)."""
    num_new, num_columns = query.shape[2], keys.shape[2]
    is_causal = mask is None and num_new == num_columns
    if mask is None and 1 < num_new < num_columns:
        mask = query.new_ones(num_new, num_columns, dtype=torch.bool).tril(num_columns - num_new)
    return functional.scaled_dot_product_attention(
        query,
        keys,
        values,
        attn_mask=mask,
        is_causal=is_causal,
        enable_gqa=query.shape[1] != keys.shape[1],
    )
