"""The search for the largest beta whose KL fits the budget: two measured points a step."""

import triton
import triton.language as tl

from .. import certificate
from .layout import (
    BUDGET,
    EPSILON,
    ESTIMATE_PEAK,
    ESTIMATE_SUM,
    FLOOR,
    INF,
    IS_UNTILTED,
    LN_2,
    LOG2_E,
    LOG2_SHARED,
    NUM_ESTIMATES,
    NUM_POINTS,
    NUM_SUMS,
    RISKY_MAX,
    RISKY_PEAK,
    SAFE_MAX,
    SAFE_PEAK,
    STEP_SUMS,
    load_record,
    load_records,
    risky_bits,
    safe_bits,
    shared_bits,
    store_record,
)
from .statistics import ROUNDING

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

LEAST_BITS = tl.constexpr(certificate.LEAST_BITS)
KL_MARGIN = tl.constexpr(certificate.KL_MARGIN)


@triton.jit
def merge_estimates(row, NUM_SLOTS: tl.constexpr):
    """Estimated points of the row from the sums of its blocks; the one at beta = 0 is exact."""
    points = tl.arange(0, NUM_ESTIMATES)
    beta = points.to(tl.float64) / (NUM_ESTIMATES - 1)
    peak = load_records(row, points + ESTIMATE_PEAK, -INF, NUM_SLOTS)
    weight = load_records(row, points + ESTIMATE_SUM, 0.0, NUM_SLOTS)
    moment = load_records(row, points + ESTIMATE_SUM + NUM_ESTIMATES, 0.0, NUM_SLOTS)
    square = load_records(row, points + ESTIMATE_SUM + 2 * NUM_ESTIMATES, 0.0, NUM_SLOTS)
    # Blocks keep bits relative to their own largest logits; here all become relative to the row's.
    has_block = peak > -INF
    safe_shift = _peak_shift(row, SAFE_MAX, SAFE_PEAK, NUM_SLOTS)
    risky_shift = _peak_shift(row, RISKY_MAX, RISKY_PEAK, NUM_SLOTS)
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
    slots = row.table + points
    tl.store(slots + BETA * TABLE_SIZE, beta)
    tl.store(slots + KL * TABLE_SIZE, kl)
    tl.store(slots + KL_HIGH * TABLE_SIZE, tl.where(points == 0, 0.0, INF))
    tl.store(slots + VELOCITY * TABLE_SIZE, velocity)
    log2_shared = tl.load(row.facts + LOG2_SHARED)
    tl.store(
        slots + LOG2_PARTITION * TABLE_SIZE, tl.where(points == 0, log2_shared, log2_partition)
    )
    untilted = tl.sum(tl.where(points == 0, second, 0.0), 0) == 0.0
    tl.store(row.facts + IS_UNTILTED, untilted.to(tl.float64))


@triton.jit
def _peak_shift(row, BLOCK_MAX: tl.constexpr, PEAK: tl.constexpr, NUM_SLOTS: tl.constexpr):
    """(NUM_SLOTS,) bits from the row's largest logit to each block's; 0 in an empty block."""
    block_max = load_record(row, BLOCK_MAX, -INF, NUM_SLOTS)
    return tl.where(block_max > -INF, block_max - tl.load(row.facts + PEAK), 0.0) * LOG2_E


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
def measure_points(row, column, beta, BLOCK_SIZE: tl.constexpr):
    """Power sums of the tilt, float64, in every block of this split; beta: (NUM_POINTS,).

    column: of `step_sums`.
    """
    columns = column + tl.arange(0, NUM_POINTS)
    for block in range(row.split, row.num_blocks, row.num_splits):
        risky = risky_bits(row, block, BLOCK_SIZE)
        safe = safe_bits(row, block, BLOCK_SIZE)
        is_shared, tilt = shared_bits(safe, risky)
        bits = tl.where(is_shared, safe, -INF)[:, None] + beta[None, :] * tilt[:, None]
        weight = tl.exp2(bits)
        moment = weight * tilt[:, None]
        store_record(row, columns, block, tl.sum(weight, 0))
        store_record(row, columns + NUM_POINTS, block, tl.sum(moment, 0))
        store_record(row, columns + 2 * NUM_POINTS, block, tl.sum(moment * tilt[:, None], 0))


@triton.jit
def absorb_points(row, column, beta, slot, NUM_SLOTS: tl.constexpr):
    """Enter the points whose sums were measured into the table, from `slot` on."""
    points = tl.arange(0, NUM_POINTS)
    partition = tl.sum(load_records(row, column + points, 0.0, NUM_SLOTS), 0)
    first = tl.sum(load_records(row, column + points + NUM_POINTS, 0.0, NUM_SLOTS), 0)
    second = tl.sum(load_records(row, column + 2 * NUM_POINTS + points, 0.0, NUM_SLOTS), 0)
    log2_partition = tl.log2(partition)
    mean_square = second / partition * LN_2 * LN_2
    mean, variance = _moments(first / partition, second / partition)
    psi = (log2_partition - tl.load(row.facts + LOG2_SHARED)) * LN_2
    kl, velocity = _curve(beta, psi, mean, variance)
    spread = tl.sqrt(mean_square)
    weight_error = ROUNDING + EPSILON * (spread + tl.abs(psi))
    margin = KL_MARGIN * weight_error * (1.0 + tl.abs(psi) + beta * spread)
    is_known = (log2_partition > LEAST_BITS) & (kl < INF)
    # No tilt wherever either law has weight: the two are one, and the divergence is exactly 0.
    # (A sum, for the interpreter cannot combine a scalar and a vector of truth values.)
    is_same = second + (1.0 - tl.load(row.facts + IS_UNTILTED)) == 0.0
    kl = tl.where(is_same, 0.0, tl.where(is_known, kl, INF))
    margin = tl.where(is_same, 0.0, margin)
    slots = row.table + slot + points
    tl.store(slots + BETA * TABLE_SIZE, beta)
    tl.store(slots + KL * TABLE_SIZE, kl)
    tl.store(slots + KL_HIGH * TABLE_SIZE, tl.where(is_known | is_same, kl + margin, INF))
    tl.store(slots + VELOCITY * TABLE_SIZE, velocity)
    tl.store(slots + LOG2_PARTITION * TABLE_SIZE, log2_partition)


@triton.jit
def step_sums(step):
    """First record of the sums of a step; steps take turns, for some programs may lag behind."""
    return STEP_SUMS + step % 2 * NUM_SUMS * NUM_POINTS


MAX_STEPS = tl.constexpr(28)
"""(TABLE_SIZE - NUM_ESTIMATES) / NUM_POINTS; at the limit the feasible end is returned."""

NUM_GUIDED_STEPS = tl.constexpr(2)
"""Steps that interpolate between estimates; should those mislead, later ones do without them."""

ESTIMATE_ERROR = tl.constexpr(4e-6)
"""Usual relative error of an estimate, generously."""

SHORTFALL_FRACTION = tl.constexpr(certificate.SHORTFALL_FRACTION)
SHORTFALL_NATS = tl.constexpr(certificate.SHORTFALL_NATS)
ALLOWANCE_ROUNDINGS = tl.constexpr(certificate.ALLOWANCE_ROUNDINGS)


@triton.jit
def kl_allowance(row):
    """Nats that the KL on the common support may take; see `certificate`."""
    budget = tl.load(row.facts + BUDGET)
    return budget - tl.load(row.facts + FLOOR) - ALLOWANCE_ROUNDINGS * EPSILON * budget


@triton.jit
def next_betas(row, step):
    """(NUM_POINTS,) betas to measure next, and whether the search is over.

    Only the points of earlier steps are looked at: another program may be ahead of this one.
    """
    allowance = kl_allowance(row)
    tolerance = _tolerance(row, allowance)
    slots = tl.arange(0, TABLE_SIZE)
    is_known = slots < NUM_ESTIMATES + step * NUM_POINTS
    beta = tl.load(row.table + BETA * TABLE_SIZE + slots, mask=is_known, other=2.0)
    kl = tl.load(row.table + KL * TABLE_SIZE + slots, mask=is_known, other=INF)
    kl_high = tl.load(row.table + KL_HIGH * TABLE_SIZE + slots, mask=is_known, other=INF)
    velocity = tl.load(row.table + VELOCITY * TABLE_SIZE + slots, mask=is_known, other=INF)
    is_measured = is_known & ((slots == 0) | (slots >= NUM_ESTIMATES))

    is_feasible = kl_high <= allowance
    low = tl.max(tl.where(is_feasible, beta, 0.0), 0)
    low_kl = _at(kl, is_feasible & (beta == low))
    low_margin = _at(kl_high, is_feasible & (beta == low)) - low_kl
    high = tl.min(tl.where(is_measured & ~is_feasible & (beta > low), beta, 2.0), 0)
    slack = tl.maximum(tolerance, 4.0 * low_margin)
    aim = allowance - tl.maximum(0.5 * tolerance, 2.0 * low_margin)

    # The guide is the tightest bracket that estimates and measured points agree on.
    is_clear = tl.abs(kl - aim) > ESTIMATE_ERROR * (kl + aim)
    num_guides = tl.where(step < NUM_GUIDED_STEPS, NUM_ESTIMATES, 0)
    is_guide = is_measured | (is_clear & (kl < INF) & (slots < num_guides))
    is_guide &= (beta >= low) & (beta <= high) & is_known
    lower = tl.max(tl.where(is_guide & (kl < aim), beta, low), 0)
    upper = tl.min(tl.where(is_guide & (kl >= aim) & (beta > lower), beta, 2.0), 0)
    is_lower, is_upper = is_guide & (beta == lower), is_guide & (beta == upper)
    root_0, velocity_0 = tl.sqrt(_at(kl, is_lower)), _at(velocity, is_lower)
    root_1, velocity_1 = tl.sqrt(_at(kl, is_upper)), _at(velocity, is_upper)
    root = tl.sqrt(aim)
    first, second = _predicted(lower, upper, root_0, root_1, velocity_0, velocity_1, root)
    # Should the first steps fail, the curve has a sharp bend and sqrt(KL) is no straight line:
    # then the second point follows log KL from below, and every other time halves the bracket.
    middle = 0.5 * (low + tl.minimum(high, 1.0))
    rising = lower + tl.log(root / root_0) * root_0 * velocity_0
    rising = tl.where((rising > lower) & (rising < tl.minimum(upper, 1.0)), rising, middle)
    rising = tl.where(step % 2 == 0, rising, middle)
    second = tl.where(step < NUM_GUIDED_STEPS, second, rising)
    is_over = (low >= 1.0) | (low_kl >= allowance - slack) | (step >= MAX_STEPS)
    is_over |= ~(low < 0.5 * (low + tl.minimum(high, 1.0)))
    return tl.where(tl.arange(0, NUM_POINTS) == 0, first, second), is_over


@triton.jit
def _tolerance(row, allowance):
    budget = tl.load(row.facts + BUDGET)
    return tl.minimum(tl.maximum(SHORTFALL_FRACTION * budget, SHORTFALL_NATS), 0.5 * allowance)


@triton.jit
def _at(values, is_there):
    """The value at the marked slots, which hold the same point; -inf if none is marked."""
    return tl.max(tl.where(is_there, values, -INF), 0)


@triton.jit
def _predicted(lower, upper, root_0, root_1, velocity_0, velocity_1, root):
    """Where sqrt(KL) takes the value sought, by inverse cubic interpolation, and a second guess.

    Source: cubic Hermite interpolation of beta over sqrt(KL); the secant where it leaves the
    bracket, the middle where an end is unknown, 1 where no end above is known.
    """
    width, span = upper - lower, root_1 - root_0
    t = (root - root_0) / span
    secant = lower + t * width
    speed_0, speed_1 = span * velocity_0, span * velocity_1
    cubic = lower + t * (
        speed_0
        + t * (3.0 * width - 2.0 * speed_0 - speed_1 + t * (speed_0 + speed_1 - 2.0 * width))
    )
    middle = lower + 0.5 * width
    is_open_ended = upper > 1.0
    first = tl.where((secant > lower) & (secant < upper), secant, middle)
    first = tl.where((cubic > lower) & (cubic < upper), cubic, first)
    # On the far side of the cubic from the secant: together they are likely to enclose the root.
    second = first + 0.05 * (first - secant)
    second = tl.where((second > lower) & (second < upper), second, middle)
    return (
        tl.where(is_open_ended, 1.0, first),
        tl.where(is_open_ended, 0.5 * (lower + 1.0), second),
    )


@triton.jit
def best_point(row, step):
    """The largest feasible beta measured: beta, its KL rounded up, log2 of its partition sum."""
    allowance = kl_allowance(row)
    slots = tl.arange(0, TABLE_SIZE)
    is_known = slots < NUM_ESTIMATES + step * NUM_POINTS
    beta = tl.load(row.table + BETA * TABLE_SIZE + slots, mask=is_known, other=2.0)
    kl_high = tl.load(row.table + KL_HIGH * TABLE_SIZE + slots, mask=is_known, other=INF)
    log2_partition = tl.load(
        row.table + LOG2_PARTITION * TABLE_SIZE + slots, mask=is_known, other=0.0
    )
    is_feasible = kl_high <= allowance
    low = tl.max(tl.where(is_feasible, beta, 0.0), 0)
    is_low = is_feasible & (beta == low)
    return low, _at(kl_high, is_low), _at(log2_partition, is_low)
