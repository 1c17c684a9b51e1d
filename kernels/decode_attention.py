"""Attention of a few new queries over each row's own keys, however long the other rows are."""

import math
from typing import Literal

import torch
import triton
from torch import Tensor

from .triton_attention import split_kernel, sum_kernel

# R rows of one call, S rows of storage, T new columns, H query heads, G key heads, C columns of
# storage, D head size.

KEY_BLOCK = 64
NUM_WARPS = 8
"""With 4, heads of 128 spill registers (compiled for an H200)."""
LEAST_QUERY_BLOCK = 16
"""Smallest side that a tensor core multiplies."""
MAX_SPLITS = 32
NO_SPAN = (1 << 31) - 1


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    *,
    rows: Tensor | None = None,
    scale: float | None = None,
    span: int | None = None,
    num_splits: int | None = None,
    backend: Literal["auto", "torch", "triton"] = "auto",
) -> Tensor:
    """Softmax attention where query t of a row sees the row's keys up to positions[row, t].

    query: (R, H, T, D). key, value: (S, G, C, D), storage whose last dimension is contiguous; G
    divides H. positions: (R, T) int64, ascending in each row, below C. rows: (R,) int64, which row
    of the storage each row reads; by default the first R. scale: of the scores, 1/sqrt(D) if not
    given. span: a query sees so many keys at most, its own included. num_splits: programs that
    share one row's keys; a fixed number makes the sums independent of the batch.
    backend: "triton" reads each row up to its own length, "torch" reads all C columns with a mask;
    "auto" is triton for CUDA tensors.
    Returns: (R, H, T, D) in the query's dtype; sums are float32 or better.
    Raises: ValueError for shapes that do not fit, or an unknown backend.
    """
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(f"backend must be auto, torch or triton, got {backend!r}")
    _check_shapes(query, key, value, positions)
    if span is not None and span < 1:
        raise ValueError(f"span must be >= 1, got {span}")
    if rows is None:
        rows = torch.arange(query.shape[0], device=query.device)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    limit = NO_SPAN if span is None else span
    if backend == "torch" or (backend == "auto" and not query.is_cuda):
        return _masked(query, key[rows], value[rows], positions, scale, limit)
    splits = _num_splits(query, key) if num_splits is None else num_splits
    return _split(query, key, value, positions, rows, scale, limit, splits)


def _masked(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float, span: int
) -> Tensor:
    columns = torch.arange(key.shape[2], device=key.device)
    age = positions[:, None, :, None] - columns
    # A masked NaN would spread: 0 * NaN. What no query of a row reads is not read here either.
    is_behind = (age[:, :, -1, :, None] < 0).expand_as(key)
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key.masked_fill(is_behind, 0.0),
        value.masked_fill(is_behind, 0.0),
        attn_mask=(age >= 0) & (age < span),
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


def _split(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    rows: Tensor,
    scale: float,
    span: int,
    num_splits: int,
) -> Tensor:
    num_rows, num_heads, num_columns, head_size = query.shape
    group = num_heads // key.shape[1]
    shape = (num_rows * num_heads * num_columns, num_splits)
    peak, mass = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    partial = query.new_empty((*shape, head_size), dtype=torch.float32)
    output = query.new_empty(query.shape)
    head_block = triton.next_power_of_2(max(head_size, LEAST_QUERY_BLOCK))
    query = query if query.stride(-1) == 1 else query.contiguous()
    split_kernel[(num_rows * key.shape[1], num_splits)](
        query,
        key,
        value,
        rows,
        positions.contiguous(),
        partial,
        peak,
        mass,
        *query.stride()[:3],
        *key.stride()[:3],
        *value.stride()[:3],
        scale / math.log(2.0),
        span,
        NUM_KV_HEADS=key.shape[1],
        GROUP_SIZE=group,
        NUM_COLUMNS=num_columns,
        HEAD_SIZE=head_size,
        HEAD_BLOCK=head_block,
        QUERY_BLOCK=triton.next_power_of_2(max(group * num_columns, LEAST_QUERY_BLOCK)),
        KEY_BLOCK=KEY_BLOCK,
        NUM_SPLITS=num_splits,
        IS_WIDE=not isinstance(split_kernel, triton.JITFunction),
        num_warps=NUM_WARPS,
    )
    sum_kernel[(shape[0],)](
        partial,
        peak,
        mass,
        output,
        HEAD_SIZE=head_size,
        HEAD_BLOCK=head_block,
        NUM_SPLITS=num_splits,
        SPLIT_BLOCK=triton.next_power_of_2(num_splits),
    )
    return output


def _num_splits(query: Tensor, key: Tensor) -> int:
    """Enough programs to fill the device, at least one block of keys each."""
    if not query.is_cuda:
        return 1
    multiprocessors = torch.cuda.get_device_properties(query.device).multi_processor_count
    wanted = -(-2 * multiprocessors // (query.shape[0] * key.shape[1]))
    return max(1, min(wanted, MAX_SPLITS, -(-key.shape[2] // KEY_BLOCK)))


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, positions: Tensor) -> None:
    num_rows, num_heads, num_columns, head_size = query.shape
    if key.shape != value.shape or key.shape[-1] != head_size or num_heads % key.shape[1]:
        raise ValueError(
            f"query {tuple(query.shape)}, key {tuple(key.shape)} and value {tuple(value.shape)} "
            "do not belong to one attention"
        )
    if positions.shape != (num_rows, num_columns):
        raise ValueError(
            f"positions must be {(num_rows, num_columns)}, got {tuple(positions.shape)}"
        )
    if key.stride(-1) != 1 or value.stride(-1) != 1:
        raise ValueError("the last dimension of key and value must be contiguous")
