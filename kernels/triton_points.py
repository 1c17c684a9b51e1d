"""Points of the curve KL(beta): estimated from the statistics pass, or measured in float64."""

import triton
import triton.language as tl

from .triton_layout import (
    ESTIMATE_PEAK,
    ESTIMATE_SUM,
    FIRST_SUM,
    IS_UNTILTED,
    LOG2_SHARED,
    NUM_ESTIMATES,
    NUM_POINTS,
    RISKY_MAX,
    RISKY_PEAK,
    SAFE_MAX,
    SAFE_PEAK,
)
from .triton_statistics import ROUNDING
from .triton_tokens import EPSILON, INF, LN_2, LOG2_E, load_blocks, read_bits, shared_bits

# The table of a row: TABLE_SIZE points, the estimates first, then NUM_POINTS a step.
TABLE_SIZE = tl.constexpr(64)
BETA = tl.constexpr(0)
KL = tl.constexpr(1)
KL_HIGH = tl.constexpr(2)
"""KL plus its error bound; inf for estimates, which prove nothing."""
VELOCITY = tl.constexpr(3)
"""d beta / d sqrt(KL), the slope of a nearly straight curve."""
LOG2_PARTITION = tl.constexpr(4)
NUM_COLUMNS = tl.constexpr(5)

LEAST_PARTITION = tl.constexpr(-900.0)
"""log2 of the least sum that is trusted, as in `tilt_points`."""


@triton.jit
def merge_estimates(records_ptr, facts_ptr, table_ptr, num_blocks, NUM_SLOTS: tl.constexpr):
    """Estimated points of the row from the sums of its blocks; the one at beta = 0 is exact."""
    blocks, points = tl.arange(0, NUM_SLOTS), tl.arange(0, NUM_ESTIMATES)
    places = records_ptr + points[None, :] * num_blocks + blocks[:, None]
    inside = (blocks < num_blocks)[:, None]
    beta = points.to(tl.float64) / (NUM_ESTIMATES - 1)
    peak = tl.load(
        places + ESTIMATE_PEAK * num_blocks, mask=inside, other=-INF, cache_modifier=".cg"
    )
    sums, column = places + ESTIMATE_SUM * num_blocks, NUM_ESTIMATES * num_blocks
    weight = tl.load(sums, mask=inside, other=0.0, cache_modifier=".cg")
    moment = tl.load(sums + column, mask=inside, other=0.0, cache_modifier=".cg")
    square = tl.load(sums + 2 * column, mask=inside, other=0.0, cache_modifier=".cg")
    # Blocks keep bits relative to their own largest logits; here all become relative to the row's.
    has_block = peak > -INF
    safe_shift = _peak_shift(
        records_ptr + SAFE_MAX * num_blocks, facts_ptr + SAFE_PEAK, num_blocks, NUM_SLOTS
    )
    risky_shift = _peak_shift(
        records_ptr + RISKY_MAX * num_blocks, facts_ptr + RISKY_PEAK, num_blocks, NUM_SLOTS
    )
    shift = (risky_shift - safe_shift)[:, None]
    bits = tl.where(has_block, peak + safe_shift[:, None] + beta[None, :] * shift, -INF)
    top = tl.max(bits, 0)
    scale = tl.where(has_block, tl.exp2(bits - tl.where(top > -INF, top, 0.0)[None, :]), 0.0)
    shift = tl.where(has_block, shift, 0.0)
    partition = tl.sum(scale * weight, 0)
    first = tl.sum(scale * (moment + shift * weight), 0)
    second = tl.sum(scale * (square + shift * (2.0 * moment + shift * weight)), 0)
    log2_partition = top + tl.log2(partition)
    at_zero = tl.sum(tl.where(points == 0, log2_partition, 0.0), 0)
    mean, variance = _moments(first / partition, second / partition)
    kl, velocity = _curve(beta, (log2_partition - at_zero) * LN_2, mean, variance)
    kl = tl.where(points == 0, 0.0, tl.where(kl < INF, kl, INF))
    slots = table_ptr + points
    tl.store(slots + BETA * TABLE_SIZE, beta)
    tl.store(slots + KL * TABLE_SIZE, kl)
    tl.store(slots + KL_HIGH * TABLE_SIZE, tl.where(points == 0, 0.0, INF))
    tl.store(slots + VELOCITY * TABLE_SIZE, velocity)
    log2_shared = tl.load(facts_ptr + LOG2_SHARED)
    tl.store(
        slots + LOG2_PARTITION * TABLE_SIZE, tl.where(points == 0, log2_shared, log2_partition)
    )
    untilted = tl.sum(tl.where(points == 0, second, 0.0), 0) == 0.0
    tl.store(facts_ptr + IS_UNTILTED, untilted.to(tl.float64))


@triton.jit
def _peak_shift(block_max_ptr, peak_ptr, num_blocks, NUM_SLOTS: tl.constexpr):
    """(NUM_SLOTS,) bits from the row's largest logit to each block's; 0 in an empty block."""
    block_max = load_blocks(block_max_ptr, num_blocks, -INF, NUM_SLOTS)
    return tl.where(block_max > -INF, block_max - tl.load(peak_ptr), 0.0) * LOG2_E


@triton.jit
def _moments(mean_bits, square_bits):
    """Mean and variance of the tilt in nats."""
    mean = mean_bits * LN_2
    return mean, tl.maximum(square_bits * LN_2 * LN_2 - mean * mean, 0.0)


@triton.jit
def _curve(beta, psi, mean, variance):
    """KL = beta psi' - psi and d beta / d sqrt(KL), given that KL' = beta psi''."""
    kl = tl.maximum(beta * mean - psi, 0.0)
    velocity = 2.0 * tl.sqrt(kl) / (beta * variance)
    return kl, tl.where(beta > 0.0, velocity, tl.sqrt(2.0 / variance))


@triton.jit
def measure_points(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    facts_ptr,
    sums_ptr,
    beta,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Power sums of the tilt, float64, in every block of this split; beta: (NUM_POINTS,)."""
    safe_peak, risky_peak = tl.load(facts_ptr + SAFE_PEAK), tl.load(facts_ptr + RISKY_PEAK)
    points = tl.arange(0, NUM_POINTS)
    for block in range(split, num_blocks, NUM_SPLITS):
        risky = read_bits(risky_ptr, risky_stride, risky_peak, block, vocab_size, BLOCK_SIZE)
        safe = read_bits(safe_ptr, safe_stride, safe_peak, block, vocab_size, BLOCK_SIZE)
        is_shared, tilt = shared_bits(safe, risky)
        bits = tl.where(is_shared, safe, -INF)[:, None] + beta[None, :] * tilt[:, None]
        weight = tl.exp2(bits)
        moment = weight * tilt[:, None]
        places = sums_ptr + points * num_blocks + block
        column = NUM_POINTS * num_blocks
        tl.store(places, tl.sum(weight, 0))
        tl.store(places + column, tl.sum(moment, 0))
        tl.store(places + 2 * column, tl.sum(moment * tilt[:, None], 0))


@triton.jit
def absorb_points(facts_ptr, table_ptr, sums_ptr, beta, slot, num_blocks, NUM_SLOTS: tl.constexpr):
    """Enter the points whose sums were measured into the table, from `slot` on."""
    blocks, points = tl.arange(0, NUM_SLOTS), tl.arange(0, NUM_POINTS)
    places = sums_ptr + points[None, :] * num_blocks + blocks[:, None]
    inside = (blocks < num_blocks)[:, None]
    column = NUM_POINTS * num_blocks
    partition = tl.sum(tl.load(places, mask=inside, other=0.0, cache_modifier=".cg"), 0)
    first = tl.sum(tl.load(places + column, mask=inside, other=0.0, cache_modifier=".cg"), 0)
    second = tl.sum(tl.load(places + 2 * column, mask=inside, other=0.0, cache_modifier=".cg"), 0)
    log2_partition = tl.log2(partition)
    mean_square = second / partition * LN_2 * LN_2
    mean, variance = _moments(first / partition, second / partition)
    psi = (log2_partition - tl.load(facts_ptr + LOG2_SHARED)) * LN_2
    kl, velocity = _curve(beta, psi, mean, variance)
    spread = tl.sqrt(mean_square)
    weight_error = ROUNDING + EPSILON * (spread + tl.abs(psi))
    margin = 8.0 * weight_error * (1.0 + tl.abs(psi) + beta * spread)
    is_known = (log2_partition > LEAST_PARTITION) & (kl < INF)
    # No tilt wherever either law has weight: the two are one, and the divergence is exactly 0.
    # (A sum, for the interpreter cannot combine a scalar and a vector of truth values.)
    is_same = second + (1.0 - tl.load(facts_ptr + IS_UNTILTED)) == 0.0
    kl = tl.where(is_same, 0.0, tl.where(is_known, kl, INF))
    margin = tl.where(is_same, 0.0, margin)
    slots = table_ptr + slot + points
    tl.store(slots + BETA * TABLE_SIZE, beta)
    tl.store(slots + KL * TABLE_SIZE, kl)
    tl.store(slots + KL_HIGH * TABLE_SIZE, tl.where(is_known | is_same, kl + margin, INF))
    tl.store(slots + VELOCITY * TABLE_SIZE, velocity)
    tl.store(slots + LOG2_PARTITION * TABLE_SIZE, log2_partition)


@triton.jit
def step_sums(records_ptr, step, num_blocks):
    """Where the sums of a step lie; steps take turns, for some programs may lag one behind."""
    return records_ptr + (FIRST_SUM + step % 2 * 3 * NUM_POINTS) * num_blocks
