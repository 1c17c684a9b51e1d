"""Repetition penalty and temperature of both models in one kernel, before the projection."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .triton_launch import check_device

# B requests, V vocabulary.

BLOCK_SIZE = 1024


def warped_logits(
    risky_logits: Tensor,
    safe_logits: Tensor,
    seen: Tensor,
    penalty: Tensor,
    temperature: Tensor,
) -> tuple[Tensor, Tensor]:
    """Both models' logits after the repetition penalty and the temperature, in one launch.

    risky_logits, safe_logits: (B, V), any float dtype and strides. seen: (B, V) bool, the tokens
    whose positive logits are divided by the penalty and whose others are multiplied by it.
    penalty, temperature: (B,) float32, > 0; read on the device, so their values are not checked.
    Returns: risky and safe, (B, V) float32 each; -inf stays -inf and NaN stays NaN.
    Raises: ValueError for a wrong shape or dtype, or tensors that Triton cannot reach.
    Source: Keskar et al. 2019, "CTRL", section 4.1, as transformers applies it.
    """
    _check(risky_logits, safe_logits, seen, penalty, temperature)
    check_device(risky_logits.device)
    num_rows, vocab_size = risky_logits.shape
    warped = torch.empty(2, num_rows, vocab_size, dtype=torch.float32, device=risky_logits.device)
    grid = (triton.cdiv(vocab_size, BLOCK_SIZE), num_rows)
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


def _check(
    risky_logits: Tensor, safe_logits: Tensor, seen: Tensor, penalty: Tensor, temperature: Tensor
) -> None:
    shape = risky_logits.shape
    if len(shape) != 2 or safe_logits.shape != shape or seen.shape != shape:
        raise ValueError(
            "risky_logits, safe_logits and seen must all be (B, V), got "
            f"{tuple(shape)}, {tuple(safe_logits.shape)} and {tuple(seen.shape)}"
        )
    if seen.dtype != torch.bool:
        raise ValueError(f"seen must be bool, got {seen.dtype}")
    for name, values in (("penalty", penalty), ("temperature", temperature)):
        if values.shape != shape[:1] or values.dtype != torch.float32:
            raise ValueError(
                f"{name} must be ({shape[0]},) float32, got {tuple(values.shape)} {values.dtype}"
            )


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
    row = tl.program_id(1).to(tl.int64)
    tokens = tl.program_id(0) * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE).to(tl.int64)
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
