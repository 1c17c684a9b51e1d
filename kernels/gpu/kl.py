"""The search for the largest beta whose KL fits the budget: one point measured a step."""

import triton
import triton.language as tl

from .. import certificate
from . import layout as at
from .statistics import ROUNDING

# The table of a row: TABLE_SIZE points, the estimates first, then one a step.
TABLE_SIZE = tl.constexpr(64)
BETA = tl.constexpr(0)
KL = tl.constexpr(1)
KL_HIGH = tl.constexpr(2)
"""KL plus its error bound; inf for estimates, which prove nothing."""
VELOCITY = tl.constexpr(3)
"""d beta / d sqrt(KL), the slope of a nearly straight curve."""
CURVATURE = tl.constexpr(4)
"""The derivative of the velocity."""
LOG2_RATIO = tl.constexpr(5)
"""log2 of the partition sum, less that at beta = 0."""
NUM_COLUMNS = tl.constexpr(6)

LEAST_BITS = tl.constexpr(certificate.LEAST_BITS)
KL_MARGIN = tl.constexpr(certificate.KL_MARGIN)


@triton.jit
def merge_estimates(row):
    """Enter estimated points of the row, from the sums of its blocks; the one at 0 is exact."""
    # Blocks count bits from their largest logits; from here on all count from the row's.
    safe_shift = _peak_shift(row, at.SAFE_MAX, at.SAFE_PEAK)
    shift = _peak_shift(row, at.RISKY_MAX, at.RISKY_PEAK) - safe_shift
    is_block = tl.arange(0, row.NUM_SLOTS) < row.num_blocks
    log2_untilted, untilted_square = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    for point in range(at.NUM_ESTIMATES):
        beta = (tl.zeros((), tl.float64) + point) / (at.NUM_ESTIMATES - 1)
        scale = at.weights(safe_shift + beta * shift, is_block)
        column = at.ESTIMATES + at.NUM_SUMS * point
        weight = scale * at.load_record(row, column, 0.0)
        moment = scale * at.load_record(row, column + 1, 0.0)
        square = scale * at.load_record(row, column + 2, 0.0)
        cube = scale * at.load_record(row, column + 3, 0.0)
        cube += shift * (3.0 * square + shift * (3.0 * moment + shift * weight))
        square += shift * (2.0 * moment + shift * weight)
        moment += shift * weight
        partition = tl.sum(weight, 0)
        mean_square = tl.sum(square, 0) / partition
        log2_untilted = tl.where(point == 0, tl.log2(partition), log2_untilted)
        untilted_square = tl.where(point == 0, mean_square, untilted_square)
        _enter_point(
            row,
            point,
            beta,
            tl.log2(partition) - log2_untilted,
            tl.sum(moment, 0) / partition,
            mean_square,
            tl.sum(cube, 0) / partition,
            IS_ESTIMATE=True,
        )
    tl.store(row.facts + at.IS_UNTILTED, (untilted_square == 0.0).to(tl.float64))


@triton.jit
def _peak_shift(row, BLOCK_MAX: tl.constexpr, PEAK: tl.constexpr):
    """(row.NUM_SLOTS,) bits from the row's largest logit to each block's."""
    block_max = at.load_record(row, BLOCK_MAX, -at.INF)
    shift = (block_max - tl.load(row.facts + PEAK)) * at.LOG2_E
    return tl.where(block_max > -at.INF, shift, 0.0)


@triton.jit
def _enter_point(
    row, slot, beta, log2_ratio, mean, mean_square, mean_cube, IS_ESTIMATE: tl.constexpr
):
    """Enter a point into the table: KL = beta psi' - psi, and beta as a function of sqrt(KL).

    log2_ratio: of the partition sum to that at beta = 0. mean, mean_square, mean_cube: of the tilt
    at beta, bits. KL' = beta psi'', KL'' = psi'' + beta psi'''.
    """
    psi, mean, mean_square = log2_ratio * at.LN_2, mean * at.LN_2, mean_square * (at.LN_2 * at.LN_2)
    mean_cube *= at.LN_2 * at.LN_2 * at.LN_2
    kl = tl.maximum(beta * mean - psi, 0.0)
    variance = tl.maximum(mean_square - mean * mean, 0.0)
    skew = mean_cube - mean * (3.0 * mean_square - 2.0 * mean * mean)
    slope, bend = beta * variance, variance + beta * skew
    is_zero = beta == 0.0
    velocity = tl.where(is_zero, tl.sqrt(2.0 / variance), 2.0 * tl.sqrt(kl) / slope)
    curvature = (2.0 - 4.0 * bend * kl / (slope * slope)) / slope
    curvature = tl.where(is_zero, -4.0 * skew / (3.0 * variance * variance), curvature)
    if IS_ESTIMATE:
        is_exact, is_known, margin = is_zero, kl < at.INF, at.INF
    else:
        # No tilt wherever either model has weight: the two are one, and the divergence is exactly
        # 0.
        is_exact = (mean_square == 0.0) & (tl.load(row.facts + at.IS_UNTILTED) > 0.0)
        is_known = (log2_ratio + tl.load(row.facts + at.LOG2_SHARED) > LEAST_BITS) & (kl < at.INF)
        spread = tl.sqrt(mean_square)
        weight_error = (spread + tl.abs(psi)) * at.EPSILON + ROUNDING
        margin = weight_error * KL_MARGIN * (1.0 + tl.abs(psi) + beta * spread)
    kl = tl.where(is_exact, 0.0, tl.where(is_known, kl, at.INF))
    entry = row.table + slot
    tl.store(entry + BETA * TABLE_SIZE, beta)
    tl.store(entry + KL * TABLE_SIZE, kl)
    tl.store(entry + KL_HIGH * TABLE_SIZE, tl.where(is_exact, 0.0, kl + margin))
    tl.store(entry + VELOCITY * TABLE_SIZE, velocity)
    tl.store(entry + CURVATURE * TABLE_SIZE, curvature)
    tl.store(entry + LOG2_RATIO * TABLE_SIZE, log2_ratio)


@triton.jit
def measure_point(row, column, beta):
    """Power sums of the tilt, float64, in every block of this split.

    column: of `step_sums`.
    """
    for block in range(row.split, row.num_blocks, row.num_splits):
        sums = tl.zeros([at.NUM_LANES, 2, 2], tl.float64)
        for start in range(0, row.BLOCK_SIZE, row.STEP_SIZE):
            _, is_shared, safe, tilt = at.read_bits(
                row, block * row.BLOCK_SIZE + start, row.STEP_SIZE
            )
            square = tilt * tilt
            weight = at.weights(safe + beta * tilt, is_shared)
            sums += at.power_sums(weight, tilt, square, square * tilt)
        at.store_power_sums(row, column, block, sums)


@triton.jit
def step_sums(step):
    """First record of the sums of a step; steps take turns, for some programs may be slower."""
    return step % 2 * at.NUM_SUMS + at.STEP_SUMS


MAX_STEPS = tl.constexpr(56)
"""Below TABLE_SIZE - NUM_ESTIMATES; at the limit the feasible end is returned."""

NUM_GUIDED_STEPS = tl.constexpr(2)
"""Steps that interpolate between estimates; should those mislead, later ones do without them."""

ESTIMATE_ERROR = tl.constexpr(4e-6)
"""Usual relative error of an estimate, generously."""

SHORTFALL_FRACTION = tl.constexpr(certificate.SHORTFALL_FRACTION)
SHORTFALL_NATS = tl.constexpr(certificate.SHORTFALL_NATS)
ALLOWANCE_ROUNDINGS = tl.constexpr(certificate.ALLOWANCE_ROUNDINGS)


@triton.jit
def tilt_allowance(row):
    """Nats that KL on the common support may take; see `certificate`."""
    budget = tl.load(row.facts + at.BUDGET)
    return budget - tl.load(row.facts + at.FLOOR) - budget * (ALLOWANCE_ROUNDINGS * at.EPSILON)


@triton.jit
def search_beta(row, is_open):
    """The entry of the largest feasible beta measured; one pass over the vocabulary a step."""
    step, is_searching = tl.full((), 0, tl.int32), is_open
    while is_searching:
        beta, is_over = _next_beta(row, step)
        is_searching = ~is_over
        if is_searching:
            measure_point(row, step_sums(step), beta)
            at.row_barrier(row)
            _absorb_point(row, step_sums(step), beta, step + at.NUM_ESTIMATES)
            tl.debug_barrier()  # the point, before it is looked at
            step += 1
    return _best_entry(row, step)


@triton.jit
def _absorb_point(row, column, beta, slot):
    """Enter the point whose sums were measured into the table."""
    partition = tl.sum(at.load_record(row, column, 0.0), 0)
    _enter_point(
        row,
        slot,
        beta,
        tl.log2(partition) - tl.load(row.facts + at.LOG2_SHARED),
        tl.sum(at.load_record(row, column + 1, 0.0), 0) / partition,
        tl.sum(at.load_record(row, column + 2, 0.0), 0) / partition,
        tl.sum(at.load_record(row, column + 3, 0.0), 0) / partition,
        IS_ESTIMATE=False,
    )


@triton.jit
def _next_beta(row, step):
    """The beta to measure next, and whether the search is over.

    Only the points of earlier steps are looked at: another program may be ahead of this one.
    """
    budget, allowance = tl.load(row.facts + at.BUDGET), tilt_allowance(row)
    tolerance = tl.minimum(tl.maximum(budget * SHORTFALL_FRACTION, SHORTFALL_NATS), 0.5 * allowance)
    slots = tl.arange(0, TABLE_SIZE)
    is_known = slots < step + at.NUM_ESTIMATES
    beta = tl.load(row.table + BETA * TABLE_SIZE + slots, mask=is_known, other=2.0)
    kl = tl.load(row.table + KL * TABLE_SIZE + slots, mask=is_known, other=at.INF)
    kl_high = tl.load(row.table + KL_HIGH * TABLE_SIZE + slots, mask=is_known, other=at.INF)
    is_measured = is_known & ((slots == 0) | (slots >= at.NUM_ESTIMATES))

    is_feasible = kl_high <= allowance
    low_entry = _best_entry(row, step)
    low = tl.load(low_entry + BETA * TABLE_SIZE)
    low_kl = tl.load(low_entry + KL * TABLE_SIZE)
    low_margin = tl.load(low_entry + KL_HIGH * TABLE_SIZE) - low_kl
    high = tl.min(tl.where(is_measured & ~is_feasible & (beta > low), beta, 2.0), 0)
    slack = tl.maximum(tolerance, 4.0 * low_margin)
    aim = allowance - tl.maximum(0.5 * tolerance, 2.0 * low_margin)

    # The guide is the tightest bracket that estimates and measured points agree on.
    is_clear = tl.abs(kl - aim) > (kl + aim) * ESTIMATE_ERROR
    num_guides = tl.where(step < NUM_GUIDED_STEPS, at.NUM_ESTIMATES, 0)
    is_guide = is_measured | (is_clear & (kl < at.INF) & (slots < num_guides))
    is_guide &= (beta >= low) & (beta <= high) & is_known
    lower = tl.max(tl.where(is_guide & (kl < aim), beta, low), 0)
    upper = tl.min(tl.where(is_guide & (kl >= aim) & (beta > lower), beta, 2.0), 0)
    root, middle = tl.sqrt(aim), 0.5 * (low + tl.minimum(high, 1.0))
    lower_entry = row.table + _slot(is_guide & (beta == lower))
    upper_entry = row.table + _slot(is_guide & (beta == upper))
    following, rising = _predicted(lower, upper, lower_entry, upper_entry, root)
    # Should the first steps fail, the curve has a sharp bend and sqrt(KL) is no straight line:
    # then one step in three follows log KL from below, and one halves the bracket.
    rising = tl.where((rising > lower) & (rising < tl.minimum(upper, 1.0)), rising, middle)
    turn = tl.where(step < NUM_GUIDED_STEPS, 2, step % 3)
    following = tl.where(turn == 0, rising, tl.where(turn == 1, middle, following))
    is_over = (low >= 1.0) | (low_kl >= allowance - slack) | (step >= MAX_STEPS)
    is_over |= ~(low < middle)
    return following, is_over


@triton.jit
def _slot(is_there):
    """The last of the marked slots, which hold the same point; 0 if none is marked."""
    return tl.max(tl.where(is_there, tl.arange(0, TABLE_SIZE), 0), 0)


@triton.jit
def _predicted(lower, upper, lower_entry, upper_entry, root):
    """Predictions of where sqrt(KL) is `root`: from both ends of the bracket, and by log KL.

    Source: quintic Hermite interpolation of beta over sqrt(KL); the secant where that leaves the
    bracket, the middle where an end is unknown, 1 where no end above is known.
    """
    root_0 = tl.sqrt(tl.load(lower_entry + KL * TABLE_SIZE))
    root_1 = tl.sqrt(tl.load(upper_entry + KL * TABLE_SIZE))
    velocity_0 = tl.load(lower_entry + VELOCITY * TABLE_SIZE)
    velocity_1 = tl.load(upper_entry + VELOCITY * TABLE_SIZE)
    curvature_0 = tl.load(lower_entry + CURVATURE * TABLE_SIZE)
    curvature_1 = tl.load(upper_entry + CURVATURE * TABLE_SIZE)
    width, span = upper - lower, root_1 - root_0
    t = (root - root_0) / span
    secant = lower + t * width
    speed_0, speed_1 = span * velocity_0, span * velocity_1
    bend_0, bend_1 = 0.5 * span * span * curvature_0, 0.5 * span * span * curvature_1
    # What is left of width, speed and bend at the upper end after the quadratic that the lower
    # end asks for.
    rest, turn = width - speed_0 - bend_0, speed_1 - speed_0 - 2.0 * bend_0
    bend = bend_1 - bend_0
    series = 10.0 * rest - 4.0 * turn + bend
    series += t * (7.0 * turn - 15.0 * rest - 2.0 * bend + t * (6.0 * rest - 3.0 * turn + bend))
    quintic = lower + t * (speed_0 + t * (bend_0 + t * series))
    first = lower + 0.5 * width
    first = tl.where((secant > lower) & (secant < upper), secant, first)
    first = tl.where((quintic > lower) & (quintic < upper), quintic, first)
    rising = lower + tl.log(root / root_0) * root_0 * velocity_0
    return tl.where(upper > 1.0, 1.0, first), rising


@triton.jit
def _best_entry(row, step):
    """The entry of the largest beta of the steps before that is feasible."""
    slots = tl.arange(0, TABLE_SIZE)
    is_known = slots < step + at.NUM_ESTIMATES
    beta = tl.load(row.table + BETA * TABLE_SIZE + slots, mask=is_known, other=2.0)
    kl_high = tl.load(row.table + KL_HIGH * TABLE_SIZE + slots, mask=is_known, other=at.INF)
    is_feasible = kl_high <= tilt_allowance(row)
    low = tl.max(tl.where(is_feasible, beta, 0.0), 0)
    return row.table + _slot(is_feasible & (beta == low))
