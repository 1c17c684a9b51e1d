"""The statistics pass: peaks, masses on the common support, and free estimates of the curve."""

import triton
import triton.language as tl

from .. import certificate
from . import layout as at

FLOOR_MARGIN = tl.constexpr(certificate.FLOOR_MARGIN)

ROUNDING = tl.constexpr(3e-13)
"""Relative error bound of any sum of weights: 2**18 float64 terms, at most 128 of them in a chain,
and 2e-14 of each weight on top of its exponent's roundings."""

TINY = tl.constexpr(2.0**-40)
"""Times it no sum of float32 logits overflows."""


@triton.jit
def measure_statistics(row, risky_peak, safe_peak):
    """Peaks and masses of every block of this split, relative to the block's largest logits.

    risky_peak, safe_peak: -inf at first. If `finite_masks` then finds any, the row is measured
    again with its peaks, below which masks are known by their distance; what it finds of ranges
    is the same again, bit for bit, for slower programs may still ask for masks.
    """
    risky_limit, safe_limit = at.ban_limit(risky_peak, row.risky), at.ban_limit(safe_peak, row.safe)
    for block in range(row.split, row.num_blocks, row.num_splits):
        risky_max, safe_max = _store_ranges(row, block)
        peaks, limits = (risky_max, safe_max), (risky_limit, safe_limit)
        _store_masses(row, block, peaks, limits)


@triton.jit
def _store_ranges(row, block):
    """The block's largest logits, its least finite ones, and whether any is no logit."""
    risky, safe = at.read_pair(row, block * row.BLOCK_SIZE, row.BLOCK_SIZE)
    risky_max, safe_max = tl.max(risky, 0), tl.max(safe, 0)
    risky_min = tl.min(tl.where(risky > -at.INF, risky, at.INF), 0)
    safe_min = tl.min(tl.where(safe > -at.INF, safe, at.INF), 0)
    # NaN if anything is: neither -inf nor numbers times TINY make one.
    trace = tl.sum(risky * TINY + safe * TINY, 0)
    is_bad = (trace != trace) | (risky_max == at.INF) | (safe_max == at.INF)
    at.store_record(row, at.RISKY_MAX, block, risky_max.to(tl.float64))
    at.store_record(row, at.SAFE_MAX, block, safe_max.to(tl.float64))
    at.store_record(row, at.RISKY_MIN, block, risky_min.to(tl.float64))
    at.store_record(row, at.SAFE_MIN, block, safe_min.to(tl.float64))
    at.store_record(row, at.IS_BAD, block, is_bad.to(tl.float64))
    return risky_max, safe_max


@triton.jit
def _store_masses(row, block, peaks, limits):
    """Safe masses in float64, on the common support and off it, and what the solver starts from.

    For KL that is, in float32 (1e-6 relative), power sums of the tilt at NUM_ESTIMATES betas, whose
    weights are relative to (1 - beta) times the largest safe and beta times the largest risky one,
    which bounds them all; else the risky mass on the common support and the range of the tilt.
    """
    risky_max, safe_max = peaks
    risky_limit, safe_limit = limits
    risky_base = tl.where(risky_max > -at.INF, risky_max, 0.0).to(tl.float64)
    safe_base = tl.where(safe_max > -at.INF, safe_max, 0.0).to(tl.float64)
    shared = tl.zeros([at.NUM_LANES], tl.float64)
    banned, mass = shared, shared
    largest = tl.full([at.NUM_LANES], -at.INF, tl.float64)
    smallest = largest
    sums = ()
    for _ in tl.static_range(at.NUM_ESTIMATES):
        sums += (tl.zeros([at.NUM_LANES, 2, 2], tl.float32),)  # type: ignore[assignment]
    for start in range(0, row.BLOCK_SIZE, row.STEP_SIZE):
        risky, safe = at.read_pair(row, block * row.BLOCK_SIZE + start, row.STEP_SIZE)
        is_safe = safe >= safe_limit
        is_shared = is_safe & (risky >= risky_limit)
        # The block's largest logits first: what is left is exact to its last digit however large
        # both are.
        risky, safe = risky.to(tl.float64) - risky_base, safe.to(tl.float64) - safe_base
        tilt, safe_bits = risky - safe, safe * at.LOG2_E
        weight = at.weights(safe_bits, is_safe)
        shared += at.in_lanes(tl.where(is_shared, weight, 0.0))
        banned += at.in_lanes(tl.where(is_shared, 0.0, weight))
        if row.CHARGE == "mean":
            safe_bits = tl.where(is_shared, safe_bits, -at.INF).to(tl.float32)
            tilt_bits = tl.where(is_shared, tilt * at.LOG2_E, 0.0).to(tl.float32)
            sums = _with_estimates(sums, safe_bits, tilt_bits)
        else:
            mass += at.in_lanes(at.weights(risky * at.LOG2_E, is_shared))
            largest = tl.maximum(largest, at.largest_in_lanes(tl.where(is_shared, tilt, -at.INF)))
            smallest = tl.maximum(
                smallest, at.largest_in_lanes(tl.where(is_shared, -tilt, -at.INF))
            )
    at.store_record(row, at.SHARED_MASS, block, tl.sum(shared, 0))
    at.store_record(row, at.BANNED_MASS, block, tl.sum(banned, 0))
    if row.CHARGE == "mean":
        for point in tl.static_range(at.NUM_ESTIMATES):
            at.store_power_sums(row, at.ESTIMATES + at.NUM_SUMS * point, block, sums[point])
    else:
        at.store_record(row, at.RISKY_MASS, block, tl.sum(mass, 0))
        at.store_record(row, at.TILT_MAX, block, tl.max(largest, 0))
        at.store_record(row, at.TILT_MIN, block, -tl.max(smallest, 0))


@triton.jit
def _with_estimates(sums, safe_bits, tilt):
    """The sums in lanes with those of more tokens."""
    square = tilt * tilt
    cube = square * tilt
    more = ()
    for point in tl.static_range(at.NUM_ESTIMATES):
        weight = tl.exp2(safe_bits + tilt * (point / (at.NUM_ESTIMATES - 1)))
        sum_of_point = sums[point] + at.power_sums(weight, tilt, square, cube)
        more += (sum_of_point,)  # type: ignore[assignment]
    return more


@triton.jit
def finite_masks(row):
    """(has_masks, risky peak, safe peak): masks are finite logits that count as banned."""
    risky_max = at.load_record(row, at.RISKY_MAX, -at.INF)
    safe_max = at.load_record(row, at.SAFE_MAX, -at.INF)
    risky_min = at.load_record(row, at.RISKY_MIN, at.INF)
    safe_min = at.load_record(row, at.SAFE_MIN, at.INF)
    risky_peak, safe_peak = tl.max(risky_max, 0), tl.max(safe_max, 0)
    gap = tl.maximum(risky_peak - tl.min(risky_min, 0), safe_peak - tl.min(safe_min, 0))
    return gap > at.BAN_GAP, risky_peak, safe_peak


@triton.jit
def merge_masses(row):
    """Facts that both divergences need; returns whether the row is valid."""
    safe_max = at.load_record(row, at.SAFE_MAX, -at.INF)
    risky_max = at.load_record(row, at.RISKY_MAX, -at.INF)
    is_bad = at.load_record(row, at.IS_BAD, 0.0)
    safe_peak, risky_peak = tl.max(safe_max, 0), tl.max(risky_max, 0)
    is_valid = (tl.max(is_bad, 0) == 0.0) & (safe_peak > -at.INF) & (risky_peak > -at.INF)
    safe_peak = tl.where(is_valid, safe_peak, 0.0)
    risky_peak = tl.where(is_valid, risky_peak, 0.0)
    scale = at.weights((safe_max - safe_peak) * at.LOG2_E, safe_max > -at.INF)
    shared = at.load_record(row, at.SHARED_MASS, 0.0)
    banned = at.load_record(row, at.BANNED_MASS, 0.0)
    shared, banned = tl.sum(scale * shared, 0), tl.sum(scale * banned, 0)
    is_possible = is_valid & (shared > 0.0)
    quotient = banned / tl.where(is_possible, shared, 1.0)
    floor = tl.where(
        banned > 0.0, tl.log(1.0 + quotient) * (1.0 + FLOOR_MARGIN * ROUNDING) + ROUNDING, 0.0
    )
    tl.store(row.facts + at.SAFE_PEAK, safe_peak)
    tl.store(row.facts + at.RISKY_PEAK, risky_peak)
    tl.store(row.facts + at.LOG2_SHARED, tl.where(is_possible, tl.log2(shared), 0.0))
    tl.store(row.facts + at.LOG2_SAFE_MASS, tl.where(is_valid, tl.log2(shared + banned), 0.0))
    tl.store(row.facts + at.FLOOR, tl.where(is_possible, floor, at.INF))
    tl.store(row.flags + at.IS_VALID, is_valid.to(tl.uint8))
    return is_valid


@triton.jit
def merge_extremes(row):
    """The risky mass and the range of the tilt on the common support."""
    safe_peak, risky_peak = tl.load(row.facts + at.SAFE_PEAK), tl.load(row.facts + at.RISKY_PEAK)
    risky_max = at.load_record(row, at.RISKY_MAX, -at.INF)
    mass = at.load_record(row, at.RISKY_MASS, 0.0)
    bits = tl.where(mass > 0.0, (risky_max - risky_peak) * at.LOG2_E + tl.log2(mass), -at.INF)
    peak = tl.max(bits, 0)
    total = tl.sum(tl.exp2(bits - tl.where(peak > -at.INF, peak, 0.0)), 0)
    largest = at.load_record(row, at.TILT_MAX, -at.INF)
    smallest = at.load_record(row, at.TILT_MIN, at.INF)
    safe_max = at.load_record(row, at.SAFE_MAX, -at.INF)
    has_shared = largest > -at.INF
    shift = tl.where(has_shared, risky_max, risky_peak) - risky_peak
    shift -= tl.where(has_shared, safe_max, safe_peak) - safe_peak
    tl.store(row.facts + at.LOG2_RISKY, peak + tl.log2(tl.where(total > 0.0, total, 1.0)))
    tl.store(row.facts + at.LARGEST_TILT, tl.max(largest + shift, 0) * at.LOG2_E)
    tl.store(row.facts + at.SMALLEST_TILT, tl.min(smallest + shift, 0) * at.LOG2_E)
