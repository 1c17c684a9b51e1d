"""Rows of logits warped by the settings of their requests: one launch reads a row and writes it."""

from contextlib import nullcontext
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

# S slots, B requests of a step, G rows of a request, R rows of logits, V vocabulary.

BLOCK_SIZE: Final = 1024
"""Tokens of a program: eight for each of its threads, one or two vectors of what it reads."""


@triton.jit
def warp_kernel(
    logits_ptr,
    row_stride,
    token_stride,
    index_ptr,
    slots_ptr,
    drafts_ptr,
    seen_ptr,
    penalty_ptr,
    temperature_ptr,
    warped_ptr,
    vocab_size,
    NUM_ROWS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """Grid (B * G, blocks of V)."""
    # 1. The row's request, and the row's number among the request's.
    row = tl.program_id(0).to(tl.int64)
    request, number = row // NUM_ROWS, row % NUM_ROWS
    slot = tl.load(slots_ptr + request)
    tokens = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    is_there = tokens < vocab_size
    # 2. The tokens of its text, and the drafts before the row.
    is_seen = tl.load(seen_ptr + slot * vocab_size + tokens, mask=is_there, other=0) != 0
    for g in tl.static_range(NUM_ROWS - 1):
        draft = tl.load(drafts_ptr + request * (NUM_ROWS - 1) + g)
        is_seen |= (g < number) & (tokens == draft)
    # 3. Penalty and temperature, rounded as PyTorch rounds them: `/` alone would be off by two ulp.
    start = logits_ptr + tl.load(index_ptr + row) * row_stride
    scores = tl.load(start + tokens * token_stride, mask=is_there, other=0.0).to(tl.float32)
    penalty = tl.load(penalty_ptr + slot)
    penalized = tl.where(scores > 0, tl.div_rn(scores, penalty), scores * penalty)
    scores = tl.where(is_seen, penalized, scores)
    warped = tl.div_rn(scores, tl.load(temperature_ptr + slot))
    tl.store(warped_ptr + row * vocab_size + tokens, warped, mask=is_there)


def warped_rows(
    logits: Tensor,
    index: Tensor,
    slots: Tensor,
    drafts: Tensor,
    seen: Tensor,
    penalty: Tensor,
    temperature: Tensor,
) -> Tensor:
    """The function of that name in `kernels/warp.py`, to the bit."""
    (num_requests, num_rows), vocab_size = index.shape, seen.shape[1]
    warped = torch.empty(*index.shape, vocab_size, dtype=torch.float32, device=logits.device)
    grid = (num_requests * num_rows, triton.cdiv(vocab_size, BLOCK_SIZE))
    with torch.cuda.device(logits.device) if logits.is_cuda else nullcontext():
        warp_kernel[grid](
            logits,
            *logits.stride(),
            *(x.contiguous() for x in (index, slots, drafts, seen.view(torch.uint8))),
            penalty,
            temperature,
            warped,
            vocab_size,
            NUM_ROWS=num_rows,
            BLOCK_SIZE=BLOCK_SIZE,
        )
    return warped
