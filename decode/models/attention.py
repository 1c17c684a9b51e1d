"""Attention of rows with lengths of their own: which models allow it, and their masks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import PreTrainedModel


def is_hooked(module: nn.Module) -> bool:
    """Forward hooks, pre-hooks, those of all modules, or a forward set on this one object.

    What computes with a module's weights, and not by calling it, would pass these by.
    """
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or "forward" in vars(module)
        or torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
    )


# R rows of one forward, T new columns, C columns of the cache.

SINGLE_MASK = ("llama", "mistral", "olmo2", "gpt2")
"""Families whose layers all take one mask."""

MASK_BY_TYPE = ("llama4_text", "qwen2", "qwen3")
"""Families that take a dict of masks by layer type."""

Masks = Tensor | dict[str, Tensor]
"""Of a forward: one for all layers, or one by kind of layer, as the family takes them."""

ROTARY = ("default", "linear", "llama3", "yarn")
"""Rotary embeddings of a position that do not depend on how long the other rows are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowAttention:
    """How a model is told what each query may attend to."""

    layer_types: tuple[str, ...]
    """Kinds of layers: full_attention, sliding_attention, chunked_attention."""
    span: int | None
    """Window or chunk, in tokens, of the layers that have one."""
    takes_mapping: bool
    """The model takes a dict of masks by layer type instead of one mask."""
    reach: int | None
    """Longest sequence for which a forward over rows of different lengths is right; longer ones are
    decoded alone."""
    keeps_modules: bool = False
    """The model computes by the modules of transformers though its family has lean layers."""

    def covers(self, length: int) -> bool:
        """Whether sequences of this many tokens can be decoded."""
        return self.reach is None or length <= self.reach

    def masks(self, positions: Tensor, num_columns: int, dtype: torch.dtype) -> Masks:
        """Additive masks (R, 1, T, C): 0 where a query may look, the lowest number elsewhere.

        positions: (R, T) int64, column of each query. Additive because eager attention misreads
        boolean masks; with the span built in because a 4-D mask replaces the model's own.
        """
        columns = torch.arange(num_columns, device=positions.device)
        is_past = columns <= positions[..., None]
        return self.tree_masks(is_past, positions, columns.expand(len(positions), -1), dtype)

    def tree_masks(
        self, is_ancestor: Tensor, positions: Tensor, key_positions: Tensor, dtype: torch.dtype
    ) -> Masks:
        """The same where each query sees only some of the columns, whose order is no position.

        is_ancestor: (R, T, C) bool. positions: (R, T), key_positions: (R, C) int64; the latter is
        read where there is a span.
        """
        is_visible = dict.fromkeys(self.layer_types, is_ancestor[:, None])
        if self.span is not None:
            query, key = positions[:, None, :, None], key_positions[:, None, None, :]
            for kind, seen in is_visible.items():
                is_visible[kind] = seen & _within(kind, query, key, self.span)
        masks = {kind: _additive(where, dtype) for kind, where in is_visible.items()}
        return masks if self.takes_mapping else masks[self.layer_types[0]]


def row_attention(model: PreTrainedModel) -> RowAttention:
    """How to mask this model; ValueError says why rows cannot differ in length in it."""
    config = model.config
    if is_hooked(model):
        raise ValueError("it has a hook or a forward of its own, which rows would pass by")
    _check_supported(config)
    if config.model_type in SINGLE_MASK:
        span = getattr(config, "sliding_window", None)
        layer_types = ("full_attention",) if span is None else ("sliding_attention",)
    else:
        layer_types = tuple(sorted(set(config.layer_types)))
        chunk = getattr(config, "attention_chunk_size", None)
        span = chunk if config.model_type == "llama4_text" else config.sliding_window
    return RowAttention(
        layer_types=layer_types,
        span=span,
        takes_mapping=config.model_type in MASK_BY_TYPE,
        reach=_reach(config),
    )


def _check_supported(config) -> None:  # type: ignore[no-untyped-def]
    if config.model_type not in SINGLE_MASK + MASK_BY_TYPE:
        raise ValueError(f"the family {config.model_type} has not been tested with rows")
    if config._attn_implementation not in ("sdpa", "eager"):
        raise ValueError(f"its attention is {config._attn_implementation}, not sdpa or eager")
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in ROTARY:
        raise ValueError(f"its rotary embedding, {rotary}, depends on the longest row")


def _reach(config) -> int | None:  # type: ignore[no-untyped-def]
    # Llama 4 scales queries by the length of the whole cache; the scale is 1 below floor_scale.
    if getattr(config, "attn_temperature_tuning", False):
        return int(config.floor_scale) - 1
    return None


def _within(kind: str, query: Tensor, key: Tensor, span: int | None) -> Tensor:
    """Whether a key of the past lies in the window or chunk of a query."""
    if kind == "full_attention":
        return torch.ones_like(key, dtype=torch.bool)
    assert span is not None
    if kind == "sliding_attention":
        return key > query - span
    return key // span == query // span


def _additive(is_visible: Tensor, dtype: torch.dtype) -> Tensor:
    mask = torch.zeros(is_visible.shape, dtype=dtype, device=is_visible.device)
    return mask.masked_fill_(~is_visible, torch.finfo(dtype).min)
