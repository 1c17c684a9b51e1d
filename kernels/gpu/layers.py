"""`kernels.layers` in one Triton kernel each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import launching_on

if TYPE_CHECKING:
    from ..layers import HeadSplit

BLOCK_SIZE = 1024
"""Numbers of one program of the gate."""


def add_and_norm(hidden: Tensor, update: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """See `kernels.layers`."""
    num_tokens, size = hidden.shape
    normed = torch.empty_like(hidden)
    block = triton.next_power_of_2(size)
    with launching_on(hidden.device):
        add_and_norm_kernel[(num_tokens,)](
            hidden, update, weight, normed, eps, SIZE=size, BLOCK=block, num_warps=_num_warps(block)
        )
    return normed


def gated(gate_up: Tensor) -> Tensor:
    """See `kernels.layers`."""
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty(num_tokens, width)
    # Tokens first: a grid has at most 65,535 programs in its other dimensions.
    with launching_on(gate_up.device):
        gated_kernel[(num_tokens, triton.cdiv(width, BLOCK_SIZE))](
            gate_up, output, WIDTH=width, BLOCK=BLOCK_SIZE
        )
    return output


def store_heads(
    product: Tensor,
    cos: Tensor,
    sin: Tensor,
    split: HeadSplit,
    storage: tuple[Tensor, Tensor],
    columns: Tensor,
) -> Tensor:
    """See `kernels.layers`."""
    num_heads, num_key_heads, size, norms, eps = split
    query = product.new_empty(len(product), num_heads, size)
    keys, values = storage
    with launching_on(product.device):
        store_heads_kernel[(len(product), num_heads + 2 * num_key_heads)](
            product,
            cos,
            sin,
            *(norms or (None, None)),
            query,
            keys,
            values,
            columns.contiguous(),
            *keys.stride()[:3],
            *values.stride()[:3],
            eps,
            NUM_COLUMNS=columns.shape[1],
            NUM_HEADS=num_heads,
            NUM_KEY_HEADS=num_key_heads,
            HALF=size // 2,
            BLOCK=triton.next_power_of_2(size // 2),
            num_warps=1,
        )
    return query


def _num_warps(block: int) -> int:
    """32 numbers a thread at 8,192, the widest of the families in use."""
    return min(8, max(1, block // 256))


@triton.jit
def add_and_norm_kernel(
    hidden_ptr, update_ptr, weight_ptr, normed_ptr, eps, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """One token."""
    lanes = tl.arange(0, BLOCK)
    is_here = lanes < SIZE
    place = tl.program_id(0).to(tl.int64) * SIZE + lanes
    hidden = tl.load(hidden_ptr + place, mask=is_here, other=0.0)
    if update_ptr is not None:
        # Rounded to its dtype before it is normed: the sum that later layers see.
        update = tl.load(update_ptr + place, mask=is_here, other=0.0)
        hidden = (hidden.to(tl.float32) + update.to(tl.float32)).to(hidden_ptr.dtype.element_ty)
        tl.store(hidden_ptr + place, hidden, mask=is_here)
    wide = hidden.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)
    weight = tl.load(weight_ptr + lanes, mask=is_here, other=0.0).to(tl.float32)
    normed = (wide * scale * weight).to(normed_ptr.dtype.element_ty)
    tl.store(normed_ptr + place, normed, mask=is_here)


@triton.jit
def gated_kernel(gate_up_ptr, output_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One block of one token."""
    token = tl.program_id(0).to(tl.int64)
    lanes = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    is_here = lanes < WIDTH
    source = gate_up_ptr + token * 2 * WIDTH + lanes
    gate = tl.load(source, mask=is_here, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=is_here, other=0.0).to(tl.float32)
    output = (gate * tl.sigmoid(gate) * up).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + token * WIDTH + lanes, output, mask=is_here)


@triton.jit
def store_heads_kernel(
    product_ptr,
    cos_ptr,
    sin_ptr,
    query_norm_ptr,
    key_norm_ptr,
    query_ptr,
    keys_ptr,
    values_ptr,
    columns_ptr,
    key_stride_row,
    key_stride_head,
    key_stride_column,
    value_stride_row,
    value_stride_head,
    value_stride_column,
    eps,
    NUM_COLUMNS: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    NUM_KEY_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One head of one token: of the queries, the keys or the values, in this order."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    row = token // NUM_COLUMNS
    column = tl.load(columns_ptr + token)
    lanes = tl.arange(0, BLOCK)
    is_here = lanes < HALF
    source = product_ptr + (token * (NUM_HEADS + 2 * NUM_KEY_HEADS) + head) * 2 * HALF + lanes
    first = tl.load(source, mask=is_here, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=is_here, other=0.0).to(tl.float32)
    if head < NUM_HEADS + NUM_KEY_HEADS:
        if query_norm_ptr is not None:
            norm = (query_norm_ptr if head < NUM_HEADS else key_norm_ptr) + lanes
            squares = tl.sum(first * first, 0) + tl.sum(second * second, 0)
            scale = tl.rsqrt(squares / (2 * HALF) + eps)
            first *= scale * tl.load(norm, mask=is_here, other=0.0).to(tl.float32)
            second *= scale * tl.load(norm + HALF, mask=is_here, other=0.0).to(tl.float32)
        angle = token * 2 * HALF + lanes
        cos = tl.load(cos_ptr + angle, mask=is_here, other=0.0)
        sin = tl.load(sin_ptr + angle + HALF, mask=is_here, other=0.0)
        first, second = first * cos - second * sin, second * cos + first * sin
    dtype = query_ptr.dtype.element_ty
    if head < NUM_HEADS:
        target = query_ptr + (token * NUM_HEADS + head) * 2 * HALF + lanes
        tl.store(target, first.to(dtype), mask=is_here)
        tl.store(target + HALF, second.to(dtype), mask=is_here)
    elif head < NUM_HEADS + NUM_KEY_HEADS:
        place = row * key_stride_row + column * key_stride_column
        target = keys_ptr + place + (head - NUM_HEADS) * key_stride_head + lanes
        tl.store(target, first.to(dtype), mask=is_here)
        tl.store(target + HALF, second.to(dtype), mask=is_here)
    else:
        place = row * value_stride_row + column * value_stride_column
        target = values_ptr + place + (head - NUM_HEADS - NUM_KEY_HEADS) * value_stride_head + lanes
        tl.store(target, first.to(dtype), mask=is_here)
        tl.store(target + HALF, second.to(dtype), mask=is_here)
