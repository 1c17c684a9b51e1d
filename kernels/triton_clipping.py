"""The scale c of the clipped law of order infinity: Newton steps up a concave curve."""

import triton
import triton.language as tl

from . import clipping, spend
from .triton_layout import (
    BUDGET,
    FLOOR,
    LARGEST_TILT,
    LOG2_RISKY,
    LOG2_SAFE_MASS,
    RISKY_PEAK,
    SAFE_PEAK,
    SMALLEST_TILT,
)
from .triton_points import TABLE_SIZE
from .triton_statistics import ROUNDING
from .triton_tokens import EPSILON, INF, LN_2, LOG2_E, load_blocks, read_bits, shared_bits

# The table of a row: what each step of the search begins with.
TRIAL = tl.constexpr(0)
"""The offset log2 c + constant that is measured."""
TOTAL = tl.constexpr(1)
"""The mass reached there, written by the step after."""
LOW = tl.constexpr(2)
HIGH = tl.constexpr(3)
"""Offsets between which the mass reaches 1."""
MISSING = tl.constexpr(4)
"""1 less the mass at the last trial below the root."""

MAX_CLIP_STEPS = tl.constexpr(60)
"""Below TABLE_SIZE. 288 rows within +-10,000 took at most 16; at the limit a row keeps p_s."""

MAX_CAP = tl.constexpr(spend.MAX_DIVERGENCE_CAP)
MISSING_MASS = tl.constexpr(clipping.MISSING_MASS)
RESERVE_NATS = tl.constexpr(clipping.RESERVE_NATS)
OFFSET_ERRORS = tl.constexpr(clipping.OFFSET_ERRORS)


@triton.jit
def clip_ceiling(facts_ptr):
    """log2 of the largest ratio p* / p_s that the budget allows, less what ratios may be off by."""
    budget = tl.minimum(tl.load(facts_ptr + BUDGET), MAX_CAP)
    limit = (budget - RESERVE_NATS - 16.0 * ROUNDING) * LOG2_E
    reach = tl.abs(tl.load(facts_ptr + LARGEST_TILT)) + tl.abs(tl.load(facts_ptr + SMALLEST_TILT))
    reach += tl.abs(unscaled_offset(facts_ptr)) + tl.abs(limit)
    return limit - OFFSET_ERRORS * EPSILON * reach


@triton.jit
def unscaled_offset(facts_ptr):
    """log2 of the ratio between the unscaled risky law and p_s, less the tilt."""
    return tl.load(facts_ptr + LOG2_SAFE_MASS) - tl.load(facts_ptr + LOG2_RISKY)


@triton.jit
def begin_scale(facts_ptr, table_ptr):
    """The first step: c = 1, between it and where every token is clipped."""
    low = unscaled_offset(facts_ptr)
    tl.store(table_ptr + TRIAL * TABLE_SIZE, low)
    tl.store(table_ptr + LOW * TABLE_SIZE, low)
    high = clip_ceiling(facts_ptr) - tl.load(facts_ptr + SMALLEST_TILT)
    tl.store(table_ptr + HIGH * TABLE_SIZE, high)
    tl.store(table_ptr + MISSING * TABLE_SIZE, INF)


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
    """Safe weight where the tilt is at least `cut`, and the risky weight elsewhere with its peak.

    The peak is the block's own: what is left of the risky model may lie far below its favourites.
    """
    safe_peak, risky_peak = tl.load(facts_ptr + SAFE_PEAK), tl.load(facts_ptr + RISKY_PEAK)
    for block in range(split, num_blocks, NUM_SPLITS):
        risky = read_bits(risky_ptr, risky_stride, risky_peak, block, vocab_size, BLOCK_SIZE)
        safe = read_bits(safe_ptr, safe_stride, safe_peak, block, vocab_size, BLOCK_SIZE)
        is_shared, tilt = shared_bits(safe, risky)
        is_clipped = is_shared & (tilt >= cut)
        clipped = tl.where(is_clipped, tl.exp2(safe), 0.0)
        free = tl.where(is_shared & ~is_clipped, risky, -INF)
        peak = tl.max(free, 0)
        weight = tl.exp2(free - tl.where(peak > -INF, peak, 0.0))
        tl.store(sums_ptr + block, tl.sum(clipped, 0))
        tl.store(sums_ptr + num_blocks + block, peak)
        tl.store(sums_ptr + 2 * num_blocks + block, tl.sum(weight, 0))


@triton.jit
def next_offset(facts_ptr, table_ptr, sums_ptr, step, num_blocks, NUM_SLOTS: tl.constexpr):
    """Enter the mass that the step before reached and where to try next; returns whether to stop.

    The steps are those of `clipping`: the tangent meets 1 at or below the root and so raises the
    lower end; where it is slow, the middle is tried.
    """
    before, here = table_ptr + step - 1, table_ptr + step
    trial, missing = tl.load(before), tl.load(before + MISSING * TABLE_SIZE)
    low, high = tl.load(before + LOW * TABLE_SIZE), tl.load(before + HIGH * TABLE_SIZE)
    total, root = _reached(facts_ptr, sums_ptr, trial, num_blocks, NUM_SLOTS)
    is_below = total <= 1.0
    # Not above: the same linear piece twice, so its root is exact; or nothing is left to scale.
    is_over = (tl.abs(1.0 - total) <= MISSING_MASS) | (is_below & ~(root > trial))
    width = high - low
    high = tl.where(is_below, high, trial)
    low = tl.maximum(low, tl.minimum(root, high))
    is_slow = (high - low > 0.5 * width) & (trial != low)
    is_slow &= ~is_below | (1.0 - total > 0.25 * missing)
    following = tl.where(is_slow, low + 0.5 * (high - low), low)
    is_over |= (following == trial) | (step >= MAX_CLIP_STEPS)
    tl.store(before + TOTAL * TABLE_SIZE, total)
    tl.store(here, following)
    tl.store(here + LOW * TABLE_SIZE, low)
    tl.store(here + HIGH * TABLE_SIZE, high)
    tl.store(here + MISSING * TABLE_SIZE, tl.where(is_below, 1.0 - total, missing))
    return is_over


@triton.jit
def _reached(facts_ptr, sums_ptr, offset, num_blocks, NUM_SLOTS: tl.constexpr):
    """The total mass at an offset, and the offset at which its tangent meets 1."""
    log2_safe, ceiling = tl.load(facts_ptr + LOG2_SAFE_MASS), clip_ceiling(facts_ptr)
    clipped = tl.sum(load_blocks(sums_ptr, num_blocks, 0.0, NUM_SLOTS), 0)
    clipped *= tl.exp2(ceiling - log2_safe)
    peaks = load_blocks(sums_ptr + num_blocks, num_blocks, -INF, NUM_SLOTS)
    sums = load_blocks(sums_ptr + 2 * num_blocks, num_blocks, 0.0, NUM_SLOTS)
    peak = tl.max(peaks, 0)
    has_free = peak > -INF
    free = tl.sum(tl.exp2(peaks - tl.where(has_free, peak, 0.0)) * sums, 0)
    log2_free = tl.where(has_free, peak + tl.log2(tl.where(has_free, free, 1.0)), -INF)
    total = clipped + tl.exp2(offset - log2_safe + log2_free)
    has_room = clipped < 1.0
    root = tl.log2(tl.where(has_room, 1.0 - clipped, 1.0)) + log2_safe - log2_free
    return total, tl.where(has_room, root, -INF)


@triton.jit
def best_scale(table_ptr, step):
    """The largest offset tried whose mass is not above 1, and that mass; 0 if there is none."""
    steps = tl.arange(0, TABLE_SIZE)
    is_known = steps < step
    trial = tl.load(table_ptr + steps, mask=is_known, other=-INF)
    total = tl.load(table_ptr + TOTAL * TABLE_SIZE + steps, mask=is_known, other=0.0)
    is_usable = is_known & (total <= 1.0 + MISSING_MASS)
    best = tl.max(tl.where(is_usable, trial, -INF), 0)
    return best, tl.max(tl.where(is_usable & (trial == best), total, 0.0), 0)


@triton.jit
def clipped_spend(facts_ptr, offset, excess):
    """D_inf of the law scaled down by its excess, rounded up, and at least the floor; nats."""
    largest_tilt = tl.load(facts_ptr + LARGEST_TILT)
    largest = tl.minimum(offset + largest_tilt, clip_ceiling(facts_ptr)) - excess
    magnitude = tl.abs(offset) + tl.abs(largest_tilt)
    margin = 8.0 * ROUNDING + 0.5 * OFFSET_ERRORS * EPSILON * magnitude * LN_2
    floor = tl.load(facts_ptr + FLOOR)
    is_same = largest_tilt == tl.load(facts_ptr + SMALLEST_TILT)
    return tl.where(is_same, floor, tl.maximum(largest * LN_2 + margin, floor))
