"""The search for the scale of a clipped law, and the law that either search ends with."""

import triton
import triton.language as tl

from .. import certificate, spend
from .kl_search import (
    BETA,
    KL_HIGH,
    LOG2_RATIO,
    TABLE_SIZE,
    kl_allowance,
    merge_estimates,
    search_beta,
    step_sums,
)
from .layout import (
    BUDGET,
    CEILING,
    EPSILON,
    FLOOR,
    INF,
    IS_SAFE_ONLY,
    LARGEST_TILT,
    LN_2,
    LOG2_E,
    LOG2_RISKY,
    LOG2_SAFE_MASS,
    LOG2_SHARED,
    NUM_LANES,
    OFFSET,
    SLOPE,
    SMALLEST_TILT,
    SPEND,
    WEIGHT,
    in_lanes,
    largest_in_lanes,
    load_record,
    read_bits,
    row_barrier,
    store_record,
    weights,
)
from .statistics import ROUNDING, merge_extremes, merge_masses

MAX_CLIP_STEPS = tl.constexpr(60)
"""288 rows within +-10,000 took at most 16."""

MAX_CAP = tl.constexpr(spend.MAX_DIVERGENCE_CAP)
MISSING_MASS = tl.constexpr(certificate.MISSING_MASS)
RESERVE_NATS = tl.constexpr(certificate.RESERVE_NATS)
OFFSET_RESERVE = tl.constexpr(certificate.OFFSET_RESERVE)
OFFSET_MARGIN = tl.constexpr(certificate.OFFSET_MARGIN)
MASS_RESERVE = tl.constexpr(certificate.MASS_RESERVE)
MASS_MARGIN = tl.constexpr(certificate.MASS_MARGIN)


@triton.jit
def clip_ceiling(row):
    """log2 of the largest ratio p* / p_s that the budget allows, less what ratios may be off by."""
    budget = tl.minimum(tl.load(row.facts + BUDGET), MAX_CAP)
    limit = (budget - RESERVE_NATS - MASS_RESERVE * ROUNDING) * LOG2_E
    reach = tl.abs(tl.load(row.facts + LARGEST_TILT)) + tl.abs(tl.load(row.facts + SMALLEST_TILT))
    reach += tl.abs(unscaled_offset(row)) + tl.abs(limit)
    return limit - reach * (OFFSET_RESERVE * EPSILON)


@triton.jit
def unscaled_offset(row):
    """log2 of the ratio between the unscaled risky law and p_s, less the tilt."""
    return tl.load(row.facts + LOG2_SAFE_MASS) - tl.load(row.facts + LOG2_RISKY)


@triton.jit
def measure_cut(row, column, cut, BLOCK_SIZE: tl.constexpr, STEP_SIZE: tl.constexpr):
    """Safe weight where the tilt is at least `cut`, and the risky weight elsewhere with its peak.

    The peak is the block's: what is left of the risky model may lie far below its favorites.
    """
    for block in range(row.split, row.num_blocks, row.num_splits):
        peak = tl.full([NUM_LANES], -INF, tl.float64)
        for start in range(0, BLOCK_SIZE, STEP_SIZE):
            _, is_shared, safe, tilt = read_bits(row, block * BLOCK_SIZE + start, STEP_SIZE)
            free = tl.where(is_shared & (tilt < cut), safe + tilt, -INF)
            peak = tl.maximum(peak, largest_in_lanes(free))
        peak = tl.max(peak, 0)
        base = tl.where(peak > -INF, peak, 0.0)
        clipped = tl.zeros([NUM_LANES], tl.float64)
        free = tl.zeros([NUM_LANES], tl.float64)
        for start in range(0, BLOCK_SIZE, STEP_SIZE):
            _, is_shared, safe, tilt = read_bits(row, block * BLOCK_SIZE + start, STEP_SIZE)
            # Each token counts once: by its safe weight if it is clipped, else by its risky one.
            is_free = tilt < cut
            weight = weights(safe + tl.where(is_free, tilt - base, 0.0), is_shared)
            clipped += in_lanes(tl.where(is_free, 0.0, weight))
            free += in_lanes(tl.where(is_free, weight, 0.0))
        store_record(row, column, block, tl.sum(clipped, 0))
        store_record(row, column + 1, block, peak)
        store_record(row, column + 2, block, tl.sum(free, 0))


@triton.jit
def search_scale(
    row,
    is_open,
    counter_ptr,
    BLOCK_SIZE: tl.constexpr,
    STEP_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """The largest offset log2 c + constant tried whose mass is not above 1, and that mass; -inf and
    0 if there is none. One pass over the vocabulary a step.

    The tangent meets 1 at or below the root and so raises the lower end of the bracket; where it is
    slow, the middle is tried. See `cpu.clipping`.
    """
    # c = 1 first; the mass reaches 1 between it and where every token is clipped.
    ceiling, low = clip_ceiling(row), unscaled_offset(row)
    high, trial = ceiling - tl.load(row.facts + SMALLEST_TILT), low
    best, total = tl.full((), -INF, tl.float64), tl.full((), 0.0, tl.float64)
    missing, step = tl.full((), INF, tl.float64), tl.full((), 0, tl.int32)
    while is_open:
        measure_cut(row, step_sums(step), ceiling - trial, BLOCK_SIZE, STEP_SIZE)
        row_barrier(counter_ptr, row.num_splits)
        reached, root = _reached(row, step_sums(step), trial, NUM_SLOTS)
        is_best = (reached - 1.0 <= MISSING_MASS) & (trial >= best)
        best, total = tl.where(is_best, trial, best), tl.where(is_best, reached, total)
        is_below = reached <= 1.0
        # Not above: the same linear piece twice, so its root is exact; or nothing is left to scale.
        is_over = (tl.abs(1.0 - reached) <= MISSING_MASS) | (is_below & ~(root > trial))
        width = high - low
        high = tl.where(is_below, high, trial)
        low = tl.maximum(low, tl.minimum(root, high))
        is_slow = (high - low > 0.5 * width) & (trial != low)
        is_slow &= ~is_below | (1.0 - reached > 0.25 * missing)
        missing = tl.where(is_below, 1.0 - reached, missing)
        following = tl.where(is_slow, low + 0.5 * (high - low), low)
        step += 1
        is_open = ~is_over & (following != trial) & (step < MAX_CLIP_STEPS)
        trial = following
    return best, total


@triton.jit
def _reached(row, column, offset, NUM_SLOTS: tl.constexpr):
    """The total mass at an offset, and the offset at which its tangent meets 1."""
    log2_safe, ceiling = tl.load(row.facts + LOG2_SAFE_MASS), clip_ceiling(row)
    clipped = tl.sum(load_record(row, column, 0.0, NUM_SLOTS), 0)
    clipped *= tl.exp2(ceiling - log2_safe)
    peaks = load_record(row, column + 1, -INF, NUM_SLOTS)
    sums = load_record(row, column + 2, 0.0, NUM_SLOTS)
    peak = tl.max(peaks, 0)
    has_free = peak > -INF
    free = tl.sum(tl.exp2(peaks - tl.where(has_free, peak, 0.0)) * sums, 0)
    log2_free = tl.where(has_free, peak + tl.log2(tl.where(has_free, free, 1.0)), -INF)
    total = clipped + tl.exp2(offset - log2_safe + log2_free)
    has_room = clipped < 1.0
    root = tl.log2(tl.where(has_room, 1.0 - clipped, 1.0)) + log2_safe - log2_free
    return total, tl.where(has_room, root, -INF)


@triton.jit
def clipped_spend(row, offset, excess):
    """D_inf of the law scaled down by its excess, rounded up, and at least the floor; nats."""
    largest_tilt = tl.load(row.facts + LARGEST_TILT)
    largest = tl.minimum(offset + largest_tilt, clip_ceiling(row)) - excess
    magnitude = tl.abs(offset) + tl.abs(largest_tilt)
    margin = magnitude * (OFFSET_MARGIN * EPSILON) * LN_2 + MASS_MARGIN * ROUNDING
    floor = tl.load(row.facts + FLOOR)
    is_same = largest_tilt == tl.load(row.facts + SMALLEST_TILT)
    return tl.where(is_same, floor, tl.maximum(largest * LN_2 + margin, floor))


QUANTUM = tl.constexpr(spend.SPEND_QUANTUM)


@triton.jit
def open_row(row, NUM_SLOTS: tl.constexpr, IS_MAX: tl.constexpr):
    """Merge the statistics of all blocks and decide whether there is anything to solve."""
    is_valid = merge_masses(row, NUM_SLOTS)
    tl.debug_barrier()  # both peaks, before the merges read them
    if IS_MAX:
        merge_extremes(row, NUM_SLOTS)
        tl.debug_barrier()  # the ends of the tilt, before clip_ceiling reads them
        is_open = is_valid & (tl.load(row.facts + FLOOR) <= clip_ceiling(row) * LN_2)
    else:
        is_open = is_valid & (tl.load(row.facts + BUDGET) > 0.0) & (kl_allowance(row) >= 0.0)
        merge_estimates(row, NUM_SLOTS)
    tl.debug_barrier()  # FLOOR and the table, before the search reads them
    return is_open


@triton.jit
def solve_row(
    row,
    counter_ptr,
    BLOCK_SIZE: tl.constexpr,
    STEP_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    IS_MAX: tl.constexpr,
):
    """Write the law p* / p_s = 2**min(SLOPE d + OFFSET, CEILING), its weight and its spend."""
    is_open = open_row(row, NUM_SLOTS, IS_MAX)
    if IS_MAX:
        offset, total = search_scale(row, is_open, counter_ptr, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS)
        # Where rounding leaves mass missing, p* stays p_s.
        is_open &= tl.abs(1.0 - total) <= MISSING_MASS
        excess = tl.log2(tl.where(is_open, total, 1.0))
        slope = 1.0
        weight = tl.minimum(tl.exp2(unscaled_offset(row) - offset), 1.0)
        spent = clipped_spend(row, offset, excess)
        offset -= excess
        tl.store(row.facts + CEILING, tl.where(is_open, clip_ceiling(row) - excess, INF))
    else:
        best = search_beta(row, is_open, counter_ptr, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS)
        slope = tl.load(best + BETA * TABLE_SIZE)
        weight, spent = slope, tl.load(best + KL_HIGH * TABLE_SIZE) + tl.load(row.facts + FLOOR)
        offset = tl.load(row.facts + LOG2_SAFE_MASS) - tl.load(row.facts + LOG2_SHARED)
        offset -= tl.load(best + LOG2_RATIO * TABLE_SIZE)
        tl.store(row.facts + CEILING, INF)
    spent = tl.ceil(spent / QUANTUM) * QUANTUM
    tl.store(row.facts + WEIGHT, tl.where(is_open, weight, 0.0))
    tl.store(row.facts + SPEND, tl.where(is_open, spent, 0.0))
    tl.store(row.facts + SLOPE, tl.where(is_open, slope, 0.0))
    tl.store(row.facts + OFFSET, tl.where(is_open, offset, 0.0))
    tl.store(row.flags + IS_SAFE_ONLY, (~is_open).to(tl.uint8))
    tl.debug_barrier()  # the law, before the draw reads it
