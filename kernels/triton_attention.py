"""Triton programs of decode attention: one split of a row's keys each, then their sum."""

import triton
import triton.language as tl


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
    span,
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
        age = position[:, None] - place[None, :]
        is_visible = (age >= 0) & (age < span) & (place < last)[None, :]
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
