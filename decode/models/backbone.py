"""A model without its output layer: tokens to hidden states over a row cache."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from .attention import Masks, RowAttention, is_hooked
from .kv_cache import RowCache

# R rows, T columns, H heads, E head size.


class RotaryTable:
    """Cosines and sines by position, from the model's own module; they double when they end."""

    def __init__(self, rotary: nn.Module) -> None:
        """rotary: one whose angles depend on the position alone (see `attention.ROTARY`)."""
        self._rotary = rotary
        self._cos = self._sin = torch.empty(0, 0)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, (R, T, 1, E) float32, for `rotated`; positions: (R, T) int64 on the CPU."""
        needed = int(positions.max()) + 1
        if needed > len(self._cos):
            self._extend(max(needed, 2 * len(self._cos)))
        return self._cos[positions], self._sin[positions]

    def _extend(self, length: int) -> None:
        angles = self._rotary(torch.empty(0), torch.arange(length)[None])
        cos, sin = (part[0, :, None] for part in angles)
        sin[..., : sin.shape[-1] // 2].neg_()
        self._cos, self._sin = cos, sin


def rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads (R, T, H, E) turned by the angles of their positions: halves of E are coordinates."""
    return torch.addcmul(heads * cos, heads.roll(heads.shape[-1] // 2, -1), sin)


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


class _Linear(NamedTuple):
    """A linear layer without a module's call, which takes as long as a small product."""

    weight: Tensor
    bias: Tensor | None

    def __call__(self, hidden: Tensor) -> Tensor:
        """(N, out) of (N, in)."""
        return functional.linear(hidden, self.weight, self.bias)


class _Layer(NamedTuple):
    """What one layer is made of; the tensors are the model's own."""

    attention_norm: _Norm
    query: _Linear
    key: _Linear
    value: _Linear
    query_norm: _Norm | None
    key_norm: _Norm | None
    output: _Linear
    gated_norm: _Norm
    gate: _Linear
    up: _Linear
    down: _Linear


class LeanBackbone:
    """A `Backbone` for small models, in which the host's work takes as long as the products.

    Computes with the model's own weights by few operations of torch and no calls of modules.
    Results differ from those of the modules by rounding. What is done to the model later, hooks and
    other modules in place of its own, is seen when the next backbone is asked for (`backbone_of`):
    by the next stream that is opened.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """model: one that `lean_refusal` has nothing against; its tensors are taken as they are."""
        base: Any = model.get_submodule("model")
        self._embeddings, self._norm = base.embed_tokens.weight, _norm(base.norm)
        self._layers = [_layer(module) for module in base.layers]
        self._rotary = RotaryTable(base.rotary_emb)
        self._head_size = base.layers[0].self_attn.head_dim

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        shape = token_ids.shape
        cos, sin = self._rotary(positions)
        mask = masks["full_attention"] if isinstance(masks, dict) else masks
        hidden = functional.embedding(token_ids.flatten(), self._embeddings)
        for index, layer in enumerate(self._layers):
            normed = layer.attention_norm(hidden)
            query = rotated(self._heads(layer.query, layer.query_norm, normed, shape), cos, sin)
            key = rotated(self._heads(layer.key, layer.key_norm, normed, shape), cos, sin)
            value = self._heads(layer.value, None, normed, shape)
            keys, values = cache.update(key.transpose(1, 2), value.transpose(1, 2), index)
            heads = _attended(query.transpose(1, 2), keys, values, mask)
            hidden = hidden + layer.output(heads.transpose(1, 2).reshape(len(hidden), -1))
            normed = layer.gated_norm(hidden)
            gated = functional.silu(layer.gate(normed)).mul_(layer.up(normed))
            hidden = hidden + layer.down(gated)
        return self._norm(hidden).view(*shape, -1)

    def _heads(
        self, linear: _Linear, norm: _Norm | None, hidden: Tensor, shape: torch.Size
    ) -> Tensor:
        """(R, T, heads, head size) of (R * T, D)."""
        heads = linear(hidden).view(*shape, -1, self._head_size)
        return heads if norm is None else norm(heads)


def lean_refusal(model: PreTrainedModel, attention: RowAttention) -> str:
    """Why a model needs the modules of transformers, "" if it does not."""
    config = model.config
    if config.model_type not in FAMILIES:
        return f"the family {config.model_type} is none of {', '.join(FAMILIES)}"
    if attention.layer_types != ("full_attention",):
        return "its attention is not full in all layers"
    if (config._attn_implementation, config.hidden_act) != ("sdpa", "silu"):
        return f"it uses {config._attn_implementation} and {config.hidden_act}, not sdpa and silu"
    weights = model.parameters()
    if not all(type(w) is nn.Parameter and w.dtype == torch.float32 and w.is_cpu for w in weights):
        return "its weights are not all float32 on the CPU"
    if changed := [name for name, module in model.named_modules() if _is_changed(name, module)]:
        return f"its module {changed[0]} is not what the family has"
    return ""


def _is_changed(name: str, module: nn.Module) -> bool:
    """Whether a module has hooks, or is of a class that the family does not have there."""
    kinds = {"_proj": nn.Linear, "embed_tokens": nn.Embedding}
    is_other = any(name.endswith(end) and type(module) is not kind for end, kind in kinds.items())
    is_foreign = not type(module).__module__.startswith(("torch.nn.", "transformers."))
    return is_other or is_foreign or is_hooked(module)


def _layer(module: Any) -> _Layer:
    attention, gated = module.self_attn, module.mlp
    norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
    query_norm, key_norm = (None if norm is None else _norm(norm) for norm in norms)
    return _Layer(
        attention_norm=_norm(module.input_layernorm),
        query=_linear(attention.q_proj),
        key=_linear(attention.k_proj),
        value=_linear(attention.v_proj),
        query_norm=query_norm,
        key_norm=key_norm,
        output=_linear(attention.o_proj),
        gated_norm=_norm(module.post_attention_layernorm),
        gate=_linear(gated.gate_proj),
        up=_linear(gated.up_proj),
        down=_linear(gated.down_proj),
    )


def _linear(module: nn.Linear) -> _Linear:
    return _Linear(module.weight, module.bias)


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


# R rows of one forward, T new columns, D hidden size.


class Backbone(Protocol):
    """What computes hidden states of new columns after `RowCache.place` or `place_at`."""

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        """(R, T, D) of token_ids, positions (R, T) int64.

        masks: of `RowAttention`; None where new columns see all before them, and each other
        causally.
        """


class ModuleBackbone:
    """The modules of transformers as they are."""

    def __init__(self, model: PreTrainedModel) -> None:
        # get_decoder() of Llama 4 is the whole model.
        is_gpt2 = model.config.model_type == "gpt2"
        self._modules = model.get_submodule("transformer" if is_gpt2 else "model")

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
