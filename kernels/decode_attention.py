"""Attention of a few new queries over each row's own keys, however long the other rows are."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .backend import resolved_backend

# R rows of one call, S rows of storage, T new columns, H query heads, G key heads, C columns of
# storage, D head size.

KEY_BLOCK = 64
NUM_WARPS = 8
"""With 4, heads of 128 spill registers (compiled for an H200)."""
LEAST_QUERY_BLOCK = 16
"""Smallest side that a tensor core multiplies."""
MAX_SPLITS = 32


def decode_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    *,
    rows: Tensor | None = None,
    scale: float | None = None,
    num_splits: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Softmax attention where query t of a row sees the row's keys up to positions[row, t].

    query: (R, H, T, D). key, value: (S, G, C, D), storage whose last dimension is contiguous; G
    divides H. positions: (R, T) int64, ascending in each row, below C. rows: (R,) int64, which row
    of the storage each row reads; by default the first R. scale: of the scores, 1/sqrt(D) if not
    given. num_splits: programs that share one row's keys; a fixed number makes the sums
    independent of the batch.
    backend: "triton" reads each row up to its own length, "torch" reads all C columns with a mask;
    "auto" is triton for CUDA tensors.
    Returns: (R, H, T, D) in the query's dtype; sums are float32 or better.
    Raises: ValueError for shapes that do not fit, or an unknown backend.
    """
    implementation = resolved_backend(backend, query.device)
    _check_shapes(query, key, value, positions)
    if rows is None:
        rows = torch.arange(query.shape[0], device=query.device)
    rows = rows.contiguous()  # the kernel reads them one behind the other
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    if implementation == "torch":
        return _masked(query, key[rows], value[rows], positions, scale)
    splits = _num_splits(query, key) if num_splits is None else num_splits
    return _split(query, key, value, positions, rows, scale, splits)


def _masked(query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scale: float) -> Tensor:
    columns = torch.arange(key.shape[2], device=key.device)
    age = positions[:, None, :, None] - columns
    # A masked NaN would spread: 0 * NaN. What no query of a row reads is not read here either.
    is_behind = (age[:, :, -1, :, None] < 0).expand_as(key)
    return torch.nn.functional.scaled_dot_product_attention(
        query,
        key.masked_fill(is_behind, 0.0),
        value.masked_fill(is_behind, 0.0),
        attn_mask=age >= 0,
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
    num_splits: int,
) -> Tensor:
    from .gpu.launch import launching_on

    num_rows, num_heads, num_columns, head_size = query.shape
    group = num_heads // key.shape[1]
    shape = (num_rows * num_heads * num_columns, num_splits)
    peak, mass = (query.new_empty(shape, dtype=torch.float32) for _ in range(2))
    partial = query.new_empty((*shape, head_size), dtype=torch.float32)
    output = query.new_empty(query.shape)
    head_block = triton.next_power_of_2(max(head_size, LEAST_QUERY_BLOCK))
    query = query if query.stride(-1) == 1 else query.contiguous()
    with launching_on(query.device):
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


@triton.jit
def split_kernel(
    query_ptr,
    key_ptr,
    value_ptr,
    rows_ptr,
    positions_ptr,
    partial_ptr,
    peak_ptr,
    mass_ptr,
    query_stride_row,
    query_stride_head,
    query_stride_column,
    key_stride_row,
    key_stride_head,
    key_stride_column,
    value_stride_row,
    value_stride_head,
    value_stride_column,
    log2_scale,
    NUM_KV_HEADS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    NUM_COLUMNS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    QUERY_BLOCK: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    IS_WIDE: tl.constexpr,
):
    """Softmax-weighted values of one row, one key head and one split of the row's own keys."""
    row = tl.program_id(0) // NUM_KV_HEADS
    head = tl.program_id(0) % NUM_KV_HEADS
    split = tl.program_id(1)
    lanes = tl.arange(0, QUERY_BLOCK)
    column = lanes % NUM_COLUMNS
    query_head = head * GROUP_SIZE + lanes // NUM_COLUMNS
    is_query = lanes < GROUP_SIZE * NUM_COLUMNS
    dims = tl.arange(0, HEAD_BLOCK)
    is_dim = dims < HEAD_SIZE
    position = tl.load(positions_ptr + row * NUM_COLUMNS + column, mask=is_query, other=-1)
    length = tl.load(positions_ptr + row * NUM_COLUMNS + NUM_COLUMNS - 1) + 1
    query = tl.load(
        query_ptr
        + row * query_stride_row
        + query_head[:, None] * query_stride_head
        + column[:, None] * query_stride_column
        + dims[None, :],
        mask=is_query[:, None] & is_dim[None, :],
        other=0.0,
    )
    if IS_WIDE:  # the interpreter does not multiply bfloat16
        query = query.to(tl.float32)
    storage_row = tl.load(rows_ptr + row)
    keys = key_ptr + storage_row * key_stride_row + head * key_stride_head
    values = value_ptr + storage_row * value_stride_row + head * value_stride_head
    blocks = tl.cdiv(tl.cdiv(length, KEY_BLOCK), NUM_SPLITS)
    first = split * blocks * KEY_BLOCK
    last = tl.minimum(first + blocks * KEY_BLOCK, length)
    peak = tl.full((QUERY_BLOCK,), float("-inf"), tl.float32)
    mass = tl.zeros((QUERY_BLOCK,), tl.float32)
    total = tl.zeros((QUERY_BLOCK, HEAD_BLOCK), tl.float32)
    for start in range(first, last, KEY_BLOCK):
        place = start + tl.arange(0, KEY_BLOCK)
        is_here = (place < last)[:, None] & is_dim[None, :]
        offsets = place[:, None].to(tl.int64)
        key = tl.load(keys + offsets * key_stride_column + dims[None, :], mask=is_here, other=0.0)
        value = tl.load(
            values + offsets * value_stride_column + dims[None, :], mask=is_here, other=0.0
        )
        if IS_WIDE:
            key, value = key.to(tl.float32), value.to(tl.float32)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * log2_scale
        is_visible = (place[None, :] <= position[:, None]) & (place < last)[None, :]
        scores = tl.where(is_visible, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        centre = tl.where(new_peak > float("-inf"), new_peak, 0.0)
        weights = tl.exp2(scores - centre[:, None])
        kept = tl.exp2(peak - centre)
        mass = mass * kept + tl.sum(weights, 1)
        update = tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * kept[:, None] + update
        peak = new_peak
    query_number = (row * NUM_KV_HEADS * GROUP_SIZE + query_head) * NUM_COLUMNS + column
    slot = query_number * NUM_SPLITS + split
    tl.store(peak_ptr + slot, peak, mask=is_query)
    tl.store(mass_ptr + slot, mass, mask=is_query)
    tl.store(
        partial_ptr + slot[:, None] * HEAD_SIZE + dims[None, :],
        total,
        mask=is_query[:, None] & is_dim[None, :],
    )


@triton.jit
def sum_kernel(
    partial_ptr,
    peak_ptr,
    mass_ptr,
    output_ptr,
    HEAD_SIZE: tl.constexpr,
    HEAD_BLOCK: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    SPLIT_BLOCK: tl.constexpr,
):
    """The splits of one query, brought to one peak and summed in order."""
    query = tl.program_id(0)
    splits = tl.arange(0, SPLIT_BLOCK)
    is_split = splits < NUM_SPLITS
    dims = tl.arange(0, HEAD_BLOCK)
    is_dim = dims < HEAD_SIZE
    slot = query * NUM_SPLITS + splits
    peak = tl.load(peak_ptr + slot, mask=is_split, other=float("-inf"))
    mass = tl.load(mass_ptr + slot, mask=is_split, other=0.0)
    partial = tl.load(
        partial_ptr + slot[:, None] * HEAD_SIZE + dims[None, :],
        mask=is_split[:, None] & is_dim[None, :],
        other=0.0,
    )
    weight = tl.exp2(peak - tl.max(peak, 0))
    output = tl.sum(partial * weight[:, None], 0) / tl.sum(mass * weight, 0)
    target = output_ptr + query * HEAD_SIZE + dims
    tl.store(target, output.to(output_ptr.dtype.element_ty), mask=is_dim)
