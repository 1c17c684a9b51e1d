"""Log-sums of intervals in one launch: a program for each sum."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import check_device, launching_on

BLOCK_SIZE = 1024


def launched_sums(
    scores: Tensor, rows: Tensor, shifts: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """`interval_sums.interval_log_sums` of arguments that were checked.

    Raises: ValueError for tensors that Triton cannot reach.
    """
    check_device(scores.device)
    num_sums, num_terms, num_symbols = low.shape
    sums = torch.empty(num_sums, num_symbols, dtype=torch.float64, device=scores.device)
    with launching_on(scores.device):
        interval_log_sums_kernel[(num_sums, num_symbols)](
            scores, rows, shifts, low, high, sums, scores.stride(0), num_terms, num_symbols,
            BLOCK_SIZE=BLOCK_SIZE,
        )  # fmt: skip
    return sums


@triton.jit
def interval_log_sums_kernel(
    scores_ptr,
    rows_ptr,
    shifts_ptr,
    low_ptr,
    high_ptr,
    sums_ptr,
    row_stride,
    num_terms,
    num_symbols,
    BLOCK_SIZE: tl.constexpr,
):
    place = tl.program_id(0).to(tl.int64)
    symbol = tl.program_id(1)
    top = tl.full((), float("-inf"), tl.float64)
    total = tl.zeros((), tl.float64)
    for term in range(num_terms):
        at = place * num_terms + term
        row_ptr = scores_ptr + tl.load(rows_ptr + at).to(tl.int64) * row_stride
        shift = tl.load(shifts_ptr + at)
        low = tl.load(low_ptr + at * num_symbols + symbol)
        high = tl.load(high_ptr + at * num_symbols + symbol)
        for start in range(low, high, BLOCK_SIZE):
            columns = start + tl.arange(0, BLOCK_SIZE)
            inside = columns < high
            block = tl.load(row_ptr + columns, mask=inside, other=float("-inf"))
            block = block.to(tl.float64) + shift
            new_top = tl.maximum(top, tl.max(block, 0))
            # Nothing but -inf so far: exp(-inf - -inf) would be NaN, so shift by 0 then.
            base = tl.where(new_top == float("-inf"), 0.0, new_top)
            total = total * tl.exp(top - base) + tl.sum(tl.exp(block - base), 0)
            top = new_top
    base = tl.where(top == float("-inf"), 0.0, top)
    sums = tl.where(total == 0.0, float("-inf"), tl.log(total) + base)
    tl.store(sums_ptr + place * num_symbols + symbol, sums)
