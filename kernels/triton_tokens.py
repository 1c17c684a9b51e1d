"""Blocks of tokens as Triton sees them: float64 log-weights in bits, as in `logit_pair`."""

import triton
import triton.language as tl

from . import spend

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INF = tl.constexpr(float("inf"))
BAN_GAP = tl.constexpr(spend.BAN_GAP)
EPSILON = tl.constexpr(spend.EPSILON)


@triton.jit
def read_logits(row_ptr, column_stride, block, vocab_size, BLOCK_SIZE: tl.constexpr):
    """(BLOCK_SIZE,) float64 logits of one block of one row; -inf in the padding."""
    tokens = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    pointers = row_ptr + tokens.to(tl.int64) * column_stride
    return tl.load(pointers, mask=tokens < vocab_size, other=-INF).to(tl.float64)


@triton.jit
def without_masks(above_peak):
    """Logits less the largest of their row, -inf for those that count as banned."""
    return tl.where(above_peak < -BAN_GAP, -INF, above_peak)


@triton.jit
def read_bits(row_ptr, column_stride, peak, block, vocab_size, BLOCK_SIZE: tl.constexpr):
    """(BLOCK_SIZE,) float64 log2-weights, 0 for the largest logit of the row; -inf where banned."""
    logits = read_logits(row_ptr, column_stride, block, vocab_size, BLOCK_SIZE)
    return without_masks(logits - peak) * LOG2_E


@triton.jit
def shared_bits(safe_bits, risky_bits):
    """The common support, and the tilt between the models in bits, 0 off the support."""
    is_shared = (safe_bits > -INF) & (risky_bits > -INF)
    return is_shared, tl.where(is_shared, risky_bits, 0.0) - tl.where(is_shared, safe_bits, 0.0)


@triton.jit
def load_blocks(record_ptr, num_blocks, other, NUM_SLOTS: tl.constexpr):
    """(NUM_SLOTS,) one float64 of every block, past the first-level cache: others wrote them."""
    blocks = tl.arange(0, NUM_SLOTS)
    return tl.load(record_ptr + blocks, mask=blocks < num_blocks, other=other, cache_modifier=".cg")
