"""The statistics pass: peaks, masses on the common support, and free estimates of the curve."""

import triton
import triton.language as tl

from .. import certificate
from .layout import (
    BAN_GAP,
    BANNED_MASS,
    ESTIMATE_PEAK,
    ESTIMATE_SUM,
    FLOOR,
    INF,
    IS_BAD,
    IS_VALID,
    LARGEST_TILT,
    LOG2_E,
    LOG2_RISKY,
    LOG2_SAFE_MASS,
    LOG2_SHARED,
    NUM_ESTIMATES,
    RISKY_MASS,
    RISKY_MAX,
    RISKY_MIN,
    RISKY_PEAK,
    SAFE_MAX,
    SAFE_MIN,
    SAFE_PEAK,
    SHARED_MASS,
    SMALLEST_TILT,
    TILT_MAX,
    TILT_MIN,
    load_record,
    read_logits,
    store_record,
    without_masks,
)

FLOOR_MARGIN = tl.constexpr(certificate.FLOOR_MARGIN)

ROUNDING = tl.constexpr(3e-13)
"""Relative error bound of any sum of weights: 2**18 float64 terms, 1,024 of them in a chain."""


@triton.jit
def measure_statistics(
    row,
    risky_peak,
    safe_peak,
    BLOCK_SIZE: tl.constexpr,
    IS_MAX: tl.constexpr,
):
    """Peaks and masses of every block of this split, relative to the block's own largest logits.

    risky_peak, safe_peak: -inf at first. If `finite_masks` then finds any, the row is measured
    again with its peaks, below which masks are known by their distance.
    """
    for block in range(row.split, row.num_blocks, row.num_splits):
        risky = read_logits(row.risky, row.risky_stride, block, row.vocab_size, BLOCK_SIZE)
        safe = read_logits(row.safe, row.safe_stride, block, row.vocab_size, BLOCK_SIZE)
        is_bad = (risky != risky) | (safe != safe) | (risky == INF) | (safe == INF)
        risky, safe = tl.where(is_bad, -INF, risky), tl.where(is_bad, -INF, safe)
        if risky_peak > -INF:
            risky = tl.where(without_masks(risky - risky_peak) > -INF, risky, -INF)
            safe = tl.where(without_masks(safe - safe_peak) > -INF, safe, -INF)
        else:
            # Written once: slower programs may still ask for masks while others measure again.
            risky_min = tl.min(tl.where(risky > -INF, risky, INF), 0)
            safe_min = tl.min(tl.where(safe > -INF, safe, INF), 0)
            store_record(row, RISKY_MIN, block, risky_min)
            store_record(row, SAFE_MIN, block, safe_min)
        risky_max, safe_max = tl.max(risky, 0), tl.max(safe, 0)
        safe_bits = (safe - tl.where(safe_max > -INF, safe_max, 0.0)) * LOG2_E
        risky_bits = (risky - tl.where(risky_max > -INF, risky_max, 0.0)) * LOG2_E
        is_shared = (risky > -INF) & (safe > -INF)
        safe_weight = tl.exp2(safe_bits)
        store_record(row, SAFE_MAX, block, safe_max)
        store_record(row, RISKY_MAX, block, risky_max)
        store_record(row, IS_BAD, block, tl.max(is_bad.to(tl.float64), 0))
        store_record(
            row,
            SHARED_MASS,
            block,
            tl.sum(tl.where(is_shared, safe_weight, 0.0), 0),
        )
        store_record(
            row,
            BANNED_MASS,
            block,
            tl.sum(tl.where(is_shared, 0.0, safe_weight), 0),
        )
        if IS_MAX:
            _store_extremes(row, block, risky, safe, risky_bits, is_shared)
        else:
            _store_estimates(row, block, risky_bits, safe_bits, is_shared)


@triton.jit
def _store_estimates(row, block, risky_bits, safe_bits, is_shared):
    """Power sums of the tilt at NUM_ESTIMATES betas from 0 to 1, in float32 (1e-6 relative)."""
    safe = tl.where(is_shared, safe_bits, 0.0).to(tl.float32)
    tilt = tl.where(is_shared, risky_bits, 0.0).to(tl.float32) - safe
    points = tl.arange(0, NUM_ESTIMATES)
    beta = points.to(tl.float32) / (NUM_ESTIMATES - 1)
    bits = safe[:, None] + beta[None, :] * tilt[:, None]
    bits = tl.where(is_shared[:, None], bits, -INF)
    # Each point has its own peak, so that none underflows however far the models disagree.
    peak = tl.max(bits, 0)
    weight = tl.exp2(bits - tl.where(peak > -INF, peak, 0.0)[None, :])
    moment = tl.where(weight > 0.0, weight * tilt[:, None], 0.0)
    square = moment * tilt[:, None]
    first = points + ESTIMATE_SUM
    store_record(row, points + ESTIMATE_PEAK, block, peak.to(tl.float64))
    store_record(row, first, block, tl.sum(weight, 0).to(tl.float64))
    store_record(row, first + NUM_ESTIMATES, block, tl.sum(moment, 0).to(tl.float64))
    store_record(row, first + 2 * NUM_ESTIMATES, block, tl.sum(square, 0).to(tl.float64))


@triton.jit
def _store_extremes(row, block, risky, safe, risky_bits, is_shared):
    tilt = tl.where(is_shared, risky, 0.0) - tl.where(is_shared, safe, 0.0)
    weight = tl.where(is_shared, tl.exp2(risky_bits), 0.0)
    store_record(row, RISKY_MASS, block, tl.sum(weight, 0))
    store_record(row, TILT_MAX, block, tl.max(tl.where(is_shared, tilt, -INF), 0))
    store_record(row, TILT_MIN, block, tl.min(tl.where(is_shared, tilt, INF), 0))


@triton.jit
def finite_masks(row, NUM_SLOTS: tl.constexpr):
    """Whether a finite logit of the row counts as banned, and the peaks that tell: risky, safe."""
    risky_max = load_record(row, RISKY_MAX, -INF, NUM_SLOTS)
    safe_max = load_record(row, SAFE_MAX, -INF, NUM_SLOTS)
    risky_min = load_record(row, RISKY_MIN, INF, NUM_SLOTS)
    safe_min = load_record(row, SAFE_MIN, INF, NUM_SLOTS)
    risky_peak, safe_peak = tl.max(risky_max, 0), tl.max(safe_max, 0)
    gap = tl.maximum(risky_peak - tl.min(risky_min, 0), safe_peak - tl.min(safe_min, 0))
    return gap > BAN_GAP, risky_peak, safe_peak


@triton.jit
def merge_masses(row, NUM_SLOTS: tl.constexpr):
    """Facts that both divergences need; returns whether the row is valid."""
    safe_max = load_record(row, SAFE_MAX, -INF, NUM_SLOTS)
    risky_max = load_record(row, RISKY_MAX, -INF, NUM_SLOTS)
    is_bad = load_record(row, IS_BAD, 0.0, NUM_SLOTS)
    safe_peak, risky_peak = tl.max(safe_max, 0), tl.max(risky_max, 0)
    is_valid = (tl.max(is_bad, 0) == 0.0) & (safe_peak > -INF) & (risky_peak > -INF)
    safe_peak = tl.where(is_valid, safe_peak, 0.0)
    risky_peak = tl.where(is_valid, risky_peak, 0.0)
    scale = tl.where(safe_max > -INF, tl.exp2((safe_max - safe_peak) * LOG2_E), 0.0)
    shared = load_record(row, SHARED_MASS, 0.0, NUM_SLOTS)
    banned = load_record(row, BANNED_MASS, 0.0, NUM_SLOTS)
    shared, banned = tl.sum(scale * shared, 0), tl.sum(scale * banned, 0)
    is_possible = is_valid & (shared > 0.0)
    quotient = banned / tl.where(is_possible, shared, 1.0)
    floor = tl.where(
        banned > 0.0, tl.log(1.0 + quotient) * (1.0 + FLOOR_MARGIN * ROUNDING) + ROUNDING, 0.0
    )
    tl.store(row.facts + SAFE_PEAK, safe_peak)
    tl.store(row.facts + RISKY_PEAK, risky_peak)
    tl.store(row.facts + LOG2_SHARED, tl.where(is_possible, tl.log2(shared), 0.0))
    tl.store(row.facts + LOG2_SAFE_MASS, tl.where(is_valid, tl.log2(shared + banned), 0.0))
    tl.store(row.facts + FLOOR, tl.where(is_possible, floor, INF))
    tl.store(row.flags + IS_VALID, is_valid.to(tl.uint8))
    return is_valid


@triton.jit
def merge_extremes(row, NUM_SLOTS: tl.constexpr):
    """The risky mass and the range of the tilt on the common support."""
    safe_peak, risky_peak = tl.load(row.facts + SAFE_PEAK), tl.load(row.facts + RISKY_PEAK)
    risky_max = load_record(row, RISKY_MAX, -INF, NUM_SLOTS)
    mass = load_record(row, RISKY_MASS, 0.0, NUM_SLOTS)
    bits = tl.where(mass > 0.0, (risky_max - risky_peak) * LOG2_E + tl.log2(mass), -INF)
    peak = tl.max(bits, 0)
    total = tl.sum(tl.exp2(bits - tl.where(peak > -INF, peak, 0.0)), 0)
    largest = load_record(row, TILT_MAX, -INF, NUM_SLOTS)
    smallest = load_record(row, TILT_MIN, INF, NUM_SLOTS)
    shift = risky_peak - safe_peak
    tl.store(row.facts + LOG2_RISKY, peak + tl.log2(tl.where(total > 0.0, total, 1.0)))
    tl.store(row.facts + LARGEST_TILT, (tl.max(largest, 0) - shift) * LOG2_E)
    tl.store(row.facts + SMALLEST_TILT, (tl.min(smallest, 0) - shift) * LOG2_E)
