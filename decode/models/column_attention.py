"""Attention of new columns, each row reading up to positions kept on the device."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ...kernels.decode_attention import decode_attention

# B rows, T new columns, H query heads, G key heads, C columns of storage, D head size.

NAME = "anchored_columns"


def places(positions: Tensor) -> Tensor:
    """(2, B, T, 1) int64: rows and their positions, to be given to a model as its mask.

    positions: (B, T) int64. The mask is the one argument that every family hands to its attention
    as it is, if it has four dimensions; without one GPT-2 waits for the device.
    """
    rows = torch.arange(len(positions), device=positions.device)
    return torch.stack([rows[:, None].expand_as(positions), positions])[..., None]


@contextmanager
def attends_by_column(config: PretrainedConfig) -> Iterator[None]:
    """The model of this config attends with `column_attention` inside the block.

    The config is shared by all users of the model: no other thread may run it meanwhile.
    """
    usual = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(NAME, column_attention)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = usual


def column_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """(attention (B, T, H, D), no weights), as transformers calls it.

    query: (B, H, T, D). key, value: (B, G, C, D), whole storage. attention_mask: of `places`.
    """
    rows, positions = attention_mask[0, :, 0, 0], attention_mask[1, :, :, 0]
    return attended(query, key, value, positions, rows, scaling), None


def attended(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    rows: Tensor,
    scaling: float | None = None,
) -> Tensor:
    """(B, T, H, D) of query (B, H, T, D) over what each row stores up to `positions` (B, T)."""
    heads = decode_attention(query, key, value, positions, rows=rows, scale=scaling)
    return heads.transpose(1, 2)
