"""Repetition penalty and temperature of both models in one launch."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import check_device, launching_on

# B requests, V vocabulary.

BLOCK_SIZE = 1024


def launched_warping(
    risky_logits: Tensor,
    safe_logits: Tensor,
    seen: Tensor,
    penalty: Tensor,
    temperature: Tensor,
) -> tuple[Tensor, Tensor]:
    """`warping.warped_logits` of arguments that were checked.

    Raises: ValueError for tensors that Triton cannot reach.
    """
    check_device(risky_logits.device)
    num_rows, vocab_size = risky_logits.shape
    warped = torch.empty(2, num_rows, vocab_size, dtype=torch.float32, device=risky_logits.device)
    grid = (num_rows, triton.cdiv(vocab_size, BLOCK_SIZE))
    with launching_on(risky_logits.device):
        _warp_kernel[grid](
            risky_logits,
            safe_logits,
            *risky_logits.stride(),
            *safe_logits.stride(),
            seen.contiguous().view(torch.uint8),
            penalty.contiguous(),
            temperature.contiguous(),
            warped[0],
            warped[1],
            vocab_size,
            BLOCK_SIZE=BLOCK_SIZE,
        )
    return warped[0], warped[1]


@triton.jit
def _warp_kernel(
    risky_ptr,
    safe_ptr,
    risky_row_stride,
    risky_stride,
    safe_row_stride,
    safe_stride,
    seen_ptr,
    penalty_ptr,
    temperature_ptr,
    warped_risky_ptr,
    warped_safe_ptr,
    vocab_size,
    BLOCK_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE).to(tl.int64)
    inside = tokens < vocab_size
    penalty, temperature = tl.load(penalty_ptr + row), tl.load(temperature_ptr + row)
    is_seen = tl.load(seen_ptr + row * vocab_size + tokens, mask=inside, other=0) > 0
    risky = tl.load(risky_ptr + row * risky_row_stride + tokens * risky_stride, mask=inside)
    safe = tl.load(safe_ptr + row * safe_row_stride + tokens * safe_stride, mask=inside)
    risky, safe = risky.to(tl.float32), safe.to(tl.float32)
    risky = tl.where(is_seen, _penalised(risky, penalty), risky)
    safe = tl.where(is_seen, _penalised(safe, penalty), safe)
    out = row * vocab_size + tokens
    # Division as IEEE 754 has it: the logits of a CPU and of a device are the same ones.
    tl.store(warped_risky_ptr + out, tl.div_rn(risky, temperature), mask=inside)
    tl.store(warped_safe_ptr + out, tl.div_rn(safe, temperature), mask=inside)


@triton.jit
def _penalised(logits, penalty):
    return tl.where(logits > 0.0, tl.div_rn(logits, penalty), logits * penalty)
