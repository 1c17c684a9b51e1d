"""The scale c of the clipped law of order infinity: Newton steps up a concave curve."""

import triton
import triton.language as tl

from .triton_layout import (
    BUDGET,
    CEILING,
    FLOOR,
    LARGEST_TILT,
    LOG2_RISKY,
    LOG2_SAFE_MASS,
    RISKY_PEAK,
    SAFE_PEAK,
    SMALLEST_TILT,
)
from .triton_points import EPSILON
from .triton_statistics import ROUNDING
from .triton_tokens import LN_2, LOG2_E, load_blocks, read_bits, shared_bits

MAX_CLIP_STEPS = tl.constexpr(64)
"""Random rows within +-100 nats took at most 16; at the limit the row falls back to p_s."""

MISSING_MASS = tl.constexpr(1e-9)
RESERVE_NATS = tl.constexpr(2e-9)
"""The same as in `clipping`."""


@triton.jit
def clip_ceiling(facts_ptr):
    """log2 of the largest ratio p* / p_s that the budget allows, with a reserve."""
    peaks = tl.abs(tl.load(facts_ptr + SAFE_PEAK)) + tl.abs(tl.load(facts_ptr + RISKY_PEAK))
    reserve = RESERVE_NATS + 16.0 * (ROUNDING + EPSILON * peaks)
    return (tl.load(facts_ptr + BUDGET) - reserve) * LOG2_E


@triton.jit
def unscaled_offset(facts_ptr):
    """log2 of the ratio between the unscaled risky law and p_s, less the tilt."""
    return tl.load(facts_ptr + LOG2_SAFE_MASS) - tl.load(facts_ptr + LOG2_RISKY)


@triton.jit
def measure_cut(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    facts_ptr,
    sums_ptr,
    cut,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Safe weight where the tilt is at least `cut`, and share of the risky weight elsewhere."""
    safe_peak, risky_peak = tl.load(facts_ptr + SAFE_PEAK), tl.load(facts_ptr + RISKY_PEAK)
    log2_risky = tl.load(facts_ptr + LOG2_RISKY)
    for block in range(split, num_blocks, NUM_SPLITS):
        risky = read_bits(risky_ptr, risky_stride, risky_peak, block, vocab_size, BLOCK_SIZE)
        safe = read_bits(safe_ptr, safe_stride, safe_peak, block, vocab_size, BLOCK_SIZE)
        is_shared, tilt = shared_bits(safe, risky)
        is_clipped = is_shared & (tilt >= cut)
        clipped = tl.where(is_clipped, tl.exp2(safe), 0.0)
        free = tl.where(is_shared & ~is_clipped, tl.exp2(risky - log2_risky), 0.0)
        tl.store(sums_ptr + block, tl.sum(clipped, 0))
        tl.store(sums_ptr + num_blocks + block, tl.sum(free, 0))


@triton.jit
def newton_offset(facts_ptr, sums_ptr, offset, num_blocks, NUM_SLOTS: tl.constexpr):
    """Where the tangent at `offset` reaches total mass 1, the total there, and whether to stop."""
    unscaled, ceiling = unscaled_offset(facts_ptr), clip_ceiling(facts_ptr)
    log2_safe = tl.load(facts_ptr + LOG2_SAFE_MASS)
    clipped = tl.sum(load_blocks(sums_ptr, num_blocks, 0.0, NUM_SLOTS), 0)
    free = tl.sum(load_blocks(sums_ptr + num_blocks, num_blocks, 0.0, NUM_SLOTS), 0)
    clipped *= tl.exp2(ceiling - log2_safe)
    total = clipped + tl.exp2(offset - unscaled) * free
    is_scalable = (clipped < 1.0) & (free > 0.0)
    root = tl.log2(tl.where(is_scalable, 1.0 - clipped, 1.0))
    root += unscaled - tl.log2(tl.where(is_scalable, free, 1.0))
    # Not above: the same linear piece twice, so its root is exact; or nothing is left to scale.
    is_over = (1.0 - total <= MISSING_MASS) | ~is_scalable | ~(root > offset)
    return tl.where(is_over, offset, root), total, is_over


@triton.jit
def clipped_spend(facts_ptr, offset):
    """D_inf of the law with its final offset, rounded up, and at least the floor; nats."""
    largest_tilt = tl.load(facts_ptr + LARGEST_TILT)
    largest = tl.minimum(offset + largest_tilt, tl.load(facts_ptr + CEILING))
    peaks = tl.abs(tl.load(facts_ptr + SAFE_PEAK)) + tl.abs(tl.load(facts_ptr + RISKY_PEAK))
    margin = 8.0 * (ROUNDING + EPSILON * (tl.abs(largest_tilt) + peaks))
    floor = tl.load(facts_ptr + FLOOR)
    is_same = largest_tilt == tl.load(facts_ptr + SMALLEST_TILT)
    return tl.where(is_same, floor, tl.maximum(largest * LN_2 + margin, floor))
