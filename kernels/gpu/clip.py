"""The search for the scale of the clipped distribution: one cut measured a step."""

import triton
import triton.language as tl

from .. import certificate, spend
from . import layout as at
from .kl import step_sums
from .statistics import ROUNDING

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
    budget = tl.minimum(tl.load(row.facts + at.BUDGET), MAX_CAP)
    limit = (budget - RESERVE_NATS - MASS_RESERVE * ROUNDING) * at.LOG2_E
    reach = tl.abs(tl.load(row.facts + at.LARGEST_TILT))
    reach += tl.abs(tl.load(row.facts + at.SMALLEST_TILT))
    reach += tl.abs(unscaled_offset(row)) + tl.abs(limit)
    return limit - reach * (OFFSET_RESERVE * at.EPSILON)


@triton.jit
def unscaled_offset(row):
    """log2 of the ratio between the unscaled risky distribution and p_s, less the tilt."""
    return tl.load(row.facts + at.LOG2_SAFE_MASS) - tl.load(row.facts + at.LOG2_RISKY)


@triton.jit
def measure_cut(row, column, cut):
    """Safe weight where the tilt is at least `cut`, and the risky weight elsewhere with its peak.

    The peak is the block's: what is left of the risky model may lie far below its favorites.
    """
    for block in range(row.split, row.num_blocks, row.num_splits):
        peak = tl.full([at.NUM_LANES], -at.INF, tl.float64)
        for start in range(0, row.BLOCK_SIZE, row.STEP_SIZE):
            _, is_shared, safe, tilt = at.read_bits(
                row, block * row.BLOCK_SIZE + start, row.STEP_SIZE
            )
            free = tl.where(is_shared & (tilt < cut), safe + tilt, -at.INF)
            peak = tl.maximum(peak, at.largest_in_lanes(free))
        peak = tl.max(peak, 0)
        base = tl.where(peak > -at.INF, peak, 0.0)
        clipped = tl.zeros([at.NUM_LANES], tl.float64)
        free = tl.zeros([at.NUM_LANES], tl.float64)
        for start in range(0, row.BLOCK_SIZE, row.STEP_SIZE):
            _, is_shared, safe, tilt = at.read_bits(
                row, block * row.BLOCK_SIZE + start, row.STEP_SIZE
            )
            # Each token counts once: by its safe weight if it is clipped, else by its risky one.
            is_free = tilt < cut
            weight = at.weights(safe + tl.where(is_free, tilt - base, 0.0), is_shared)
            clipped += at.in_lanes(tl.where(is_free, 0.0, weight))
            free += at.in_lanes(tl.where(is_free, weight, 0.0))
        at.store_record(row, column, block, tl.sum(clipped, 0))
        at.store_record(row, column + 1, block, peak)
        at.store_record(row, column + 2, block, tl.sum(free, 0))


@triton.jit
def search_scale(row, is_open):
    """The largest offset log2 c + constant tried whose mass is not above 1, and that mass; -inf and
    0 if there is none. One pass over the vocabulary a step.

    The tangent meets 1 at or below the root and so raises the lower end of the bracket; where it is
    slow, the middle is tried. See `cpu.clip`.
    """
    # c = 1 first; the mass reaches 1 between it and where every token is clipped.
    ceiling, low = clip_ceiling(row), unscaled_offset(row)
    high, trial = ceiling - tl.load(row.facts + at.SMALLEST_TILT), low
    best, total = tl.full((), -at.INF, tl.float64), tl.full((), 0.0, tl.float64)
    missing, step = tl.full((), at.INF, tl.float64), tl.full((), 0, tl.int32)
    while is_open:
        measure_cut(row, step_sums(step), ceiling - trial)
        at.row_barrier(row)
        reached, root = _reached(row, step_sums(step), trial)
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
def _reached(row, column, offset):
    """The total mass at an offset, and the offset at which its tangent meets 1."""
    log2_safe, ceiling = tl.load(row.facts + at.LOG2_SAFE_MASS), clip_ceiling(row)
    clipped = tl.sum(at.load_record(row, column, 0.0), 0)
    clipped *= tl.exp2(ceiling - log2_safe)
    peaks = at.load_record(row, column + 1, -at.INF)
    sums = at.load_record(row, column + 2, 0.0)
    peak = tl.max(peaks, 0)
    has_free = peak > -at.INF
    free = tl.sum(tl.exp2(peaks - tl.where(has_free, peak, 0.0)) * sums, 0)
    log2_free = tl.where(has_free, peak + tl.log2(tl.where(has_free, free, 1.0)), -at.INF)
    total = clipped + tl.exp2(offset - log2_safe + log2_free)
    has_room = clipped < 1.0
    root = tl.log2(tl.where(has_room, 1.0 - clipped, 1.0)) + log2_safe - log2_free
    return total, tl.where(has_room, root, -at.INF)


@triton.jit
def clipped_spend(row, offset, excess):
    """D_inf of p* scaled down by its excess, rounded up, and at least the floor; nats."""
    largest_tilt = tl.load(row.facts + at.LARGEST_TILT)
    largest = tl.minimum(offset + largest_tilt, clip_ceiling(row)) - excess
    magnitude = tl.abs(offset) + tl.abs(largest_tilt)
    margin = magnitude * (OFFSET_MARGIN * at.EPSILON) * at.LN_2 + MASS_MARGIN * ROUNDING
    floor = tl.load(row.facts + at.FLOOR)
    is_same = largest_tilt == tl.load(row.facts + at.SMALLEST_TILT)
    return tl.where(is_same, floor, tl.maximum(largest * at.LN_2 + margin, floor))


@triton.jit
def token_bounds(row, offset, excess):
    """The most that any token costs and the margin of its log-ratio, nats; see `cpu.clip`."""
    margin = tl.abs(offset) * (OFFSET_MARGIN * at.EPSILON) * at.LN_2 + MASS_MARGIN * ROUNDING
    most = (clip_ceiling(row) - excess) * at.LN_2 + margin
    is_same = tl.load(row.facts + at.LARGEST_TILT) == tl.load(row.facts + at.SMALLEST_TILT)
    return tl.where(is_same, tl.load(row.facts + at.FLOOR), most), margin


@triton.jit
def token_spend(row, ratio, reach):
    """Nats that a token costs; see `projection.drawn_spend`."""
    nats = (ratio + reach * (OFFSET_MARGIN * at.EPSILON)) * at.LN_2
    nats += tl.load(row.facts + at.TOKEN_MARGIN)
    nats = tl.minimum(nats, tl.load(row.facts + at.TOKEN_MOST))
    return tl.ceil(nats / at.QUANTUM) * at.QUANTUM + 0.0  # 0, not -0
