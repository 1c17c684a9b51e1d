"""The layers of Llama-like models on a CPU: few operations, over weights that are packed once."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from .kv_cache import Masks, RowAttention, RowCache

# R rows of one forward, T new columns, N = R T tokens, H query heads, G key heads, C columns of
# the cache, D hidden size, O output size, E head size, F width of the gated layer.

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Norm, attention, norm, gated layer; rotary positions; biases and norms of heads or none."""

PACKED_SHARE = 0.25
"""Most of the free memory that packed copies of a model's layers may take: a pair has two models,
and the caches need room too."""

FEWEST_ROWS = 4
"""Rows of a packed product; zeros join fewer. oneDNN has another kernel for a single row,
which sums inputs of more than 1,024 in another order and takes a fifth to a third longer, as long
as two rows (shapes of SmolLM2-135M, 1 thread of an EPYC: 30 ms for 1 row, 38 for 2, 24 for 4)."""


class PackedLinear:
    """A linear layer with oneDNN's copy of its weight, which takes as much memory again.

    oneDNN reads the copy at the speed of memory for 4 to 16 rows; a plain product lays the weight
    out anew in every call. In float32 a row's result is bit-identical for any number of rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """weight: (O, D), of a dtype that `can_pack` accepts; bias: (O,)."""
        self.product: Callable[[Tensor], Tensor] = partial(
            torch.ops.mkldnn._linear_pointwise.default,
            W=torch.ops.mkldnn._reorder_linear_weight(weight.detach()),
            B=None if bias is None else bias.detach(),
            **{"attr": "none", "scalars": [], "algorithm": ""},
        )
        """(N, O) of N rows (N, D), at least FEWEST_ROWS."""

    def __call__(self, hidden: Tensor) -> Tensor:
        """(..., O) of (..., D)."""
        rows = hidden if hidden.ndim == 2 else hidden.reshape(-1, hidden.shape[-1])
        num_rows = len(rows)
        if num_rows < FEWEST_ROWS:
            rows = functional.pad(rows, (0, 0, 0, FEWEST_ROWS - num_rows))
        output = self.product(rows)[:num_rows]
        return output if hidden.ndim == 2 else output.view(*hidden.shape[:-1], -1)


def can_pack(weight: Tensor) -> bool:
    """True if oneDNN computes with this weight in its dtype here."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


class _Layer(NamedTuple):
    """The weights of one layer; norms are the model's tensors, products are packed copies."""

    attention_norm: Tensor
    """(D,)."""
    heads: Callable[[Tensor], Tensor]
    """Queries, keys and values next to each other: (N, (H + 2 G) E)."""
    head_norms: tuple[Tensor, Tensor] | None
    """(E,) each, for the queries and keys of Qwen 3."""
    output: Callable[[Tensor], Tensor]
    gated_norm: Tensor
    """(D,)."""
    gate_up: Callable[[Tensor], Tensor]
    """Both next to each other: (N, 2 F)."""
    down: Callable[[Tensor], Tensor]


class LeanBackbone:
    """A model without its output layer, in four products a layer and little between them.

    For a forward of one token, the host's work around the products of transformers' modules takes
    as long as the products of a small model. The user's model is not touched. Results differ from
    those of the modules by rounding.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """model: one that `can_be_lean`."""
        base: Any = model.get_submodule("model")
        self._embeddings, self._norm = base.embed_tokens.weight, base.norm.weight
        self._layers = [_layer(module) for module in base.layers]
        self._eps: float = base.norm.variance_epsilon
        attention = base.layers[0].self_attn
        self._head_size: int = attention.head_dim
        self._num_heads: int = model.config.num_attention_heads
        self._num_key_heads: int = model.config.num_key_value_heads
        frequencies = base.rotary_emb.inv_freq.float()
        # The sines of the first half, and they alone, have the other sign in a rotation.
        self._frequencies = torch.cat([-frequencies, frequencies])
        self._rotary_scale: float = base.rotary_emb.attention_scaling

    def __call__(
        self, token_ids: Tensor, positions: Tensor, masks: Masks | None, cache: RowCache
    ) -> Tensor:
        """(R, T, D) of token_ids, positions (R, T); see `Backbone`."""
        mask = masks["full_attention"] if isinstance(masks, dict) else masks
        rotation, num_tokens = self._rotation(positions), token_ids.numel()
        # Fewer tokens than products take are joined by others once, which attention leaves out.
        num_more = max(0, FEWEST_ROWS - num_tokens)
        rows = functional.pad(token_ids.flatten(), (0, num_more))
        hidden = functional.embedding(rows, self._embeddings)
        size, eps = hidden.shape[-1:], self._eps
        for index, layer in enumerate(self._layers):
            # What a long prompt makes has no names here, or is freed as soon as it was read.
            # 1. Attention, whose queries, keys and values are one product.
            heads = layer.heads(torch.rms_norm(hidden, size, layer.attention_norm, eps))
            heads = heads[:num_tokens].view(*token_ids.shape, -1, self._head_size)
            heads = self._attended(index, layer, heads, rotation, mask, cache)
            heads = functional.pad(heads, (0, 0, 0, num_more)) if num_more else heads
            hidden.add_(layer.output(heads))
            del heads
            # 2. The gated layer, whose two products of one input are one.
            gate, up = layer.gate_up(torch.rms_norm(hidden, size, layer.gated_norm, eps)).chunk(
                2, -1
            )
            gated = functional.silu(gate).mul_(up)
            del gate, up
            hidden.add_(layer.down(gated))
            del gated
        normed = torch.rms_norm(hidden, size, self._norm, eps)[:num_tokens]
        return normed.view(*token_ids.shape, -1)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin, (R, T, 1, E) float32 each, for all layers; positions: (R, T)."""
        angles = (positions[..., None] * self._frequencies)[:, :, None]
        return angles.cos() * self._rotary_scale, angles.sin() * self._rotary_scale

    def _attended(
        self,
        index: int,
        layer: _Layer,
        heads: Tensor,
        rotation: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: RowCache,
    ) -> Tensor:
        """(N, H E) of a layer's queries, keys and values (R, T, H + 2 G, E)."""
        (cos, sin), num_heads, num_new = rotation, self._num_heads, heads.shape[1]
        rotated, value = heads.tensor_split((num_heads + self._num_key_heads,), 2)
        if layer.head_norms is not None:
            parts = zip(rotated.tensor_split((num_heads,), 2), layer.head_norms, strict=True)
            normed = [
                torch.rms_norm(part, weight.shape, weight, self._eps) for part, weight in parts
            ]
            rotated = torch.cat(normed, 2)
        rotated = torch.addcmul(rotated * cos, rotated.roll(heads.shape[3] // 2, -1), sin)
        query, key = rotated.transpose(1, 2).tensor_split((num_heads,), 1)
        # The cache stores the new keys and values and returns those of all columns.
        keys, values = cache.update(key, value.transpose(1, 2), index)  # (R, G, C, E)
        num_columns = keys.shape[2]
        if mask is None and 1 < num_new < num_columns:
            mask = query.new_ones(num_new, num_columns, dtype=torch.bool)
            mask = mask.tril(num_columns - num_new)
        attended = functional.scaled_dot_product_attention(
            query,
            keys,
            values,
            attn_mask=mask,
            is_causal=mask is None and num_new == num_columns,
            enable_gqa=num_heads != self._num_key_heads,
        )
        return attended.transpose(1, 2).reshape(-1, num_heads * heads.shape[3])


def can_be_lean(model: PreTrainedModel, attention: RowAttention) -> bool:
    """True if these layers compute what the modules of a model do."""
    config = model.config
    kinds = {(type(weight), weight.dtype, weight.device.type) for weight in model.parameters()}
    return (
        config.model_type in FAMILIES
        and not attention.keeps_modules
        and attention.layer_types == ("full_attention",)
        and (config._attn_implementation, config.hidden_act) == ("sdpa", "silu")
        and kinds == {(nn.Parameter, torch.float32, "cpu")}
        and can_pack(next(model.parameters()))
        and not any(_is_changed(name, module) for name, module in model.named_modules())
    )


def is_hooked(module: nn.Module) -> bool:
    """Forward hooks, pre-hooks, or a forward set on this one object.

    What computes with a module's weights, and not by calling it, would pass these by.
    """
    return bool(module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module))


def _is_changed(name: str, module: nn.Module) -> bool:
    """True if a module has hooks, or is of a class that the family does not have there."""
    kinds = {"_proj": nn.Linear, "embed_tokens": nn.Embedding}
    is_other = any(name.endswith(end) and type(module) is not kind for end, kind in kinds.items())
    is_foreign = not type(module).__module__.startswith(("torch.nn.", "transformers."))
    return is_other or is_foreign or is_hooked(module)


def has_room(model: PreTrainedModel) -> bool:
    """True if packed copies of a model's layers leave enough of the free memory."""
    base: Any = model.get_submodule("model")
    num_bytes = sum(w.nbytes for name, w in base.layers.named_parameters() if "_proj." in name)
    return bool(num_bytes <= PACKED_SHARE * psutil.virtual_memory().available)


def _layer(module: Any) -> _Layer:
    attention, mlp = module.self_attn, module.mlp
    has_norms = hasattr(attention, "q_norm")
    return _Layer(
        attention_norm=module.input_layernorm.weight,
        heads=_packed(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=(attention.q_norm.weight, attention.k_norm.weight) if has_norms else None,
        output=_packed(attention.o_proj),
        gated_norm=module.post_attention_layernorm.weight,
        gate_up=_packed(mlp.gate_proj, mlp.up_proj),
        down=_packed(mlp.down_proj),
    )


def _packed(*modules: nn.Linear) -> Callable[[Tensor], Tensor]:
    """One product in place of several of one input; a missing bias is zeros next to one."""
    weight = torch.cat([module.weight.detach() for module in modules])
    if all(module.bias is None for module in modules):
        return PackedLinear(weight, None).product
    biases = [m.weight.new_zeros(len(m.weight)) if m.bias is None else m.bias for m in modules]
    return PackedLinear(weight, torch.cat([bias.detach() for bias in biases])).product
