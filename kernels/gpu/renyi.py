"""The search for the largest weight whose Rényi divergence fits the budget.

As `cpu.tilt` has it: a step measures the tilt at the weight and at the order times the weight, and
Newton's method follows the square root of the divergence, which is nearly straight.
"""

import triton
import triton.language as tl

from .. import certificate
from . import layout as at
from .kl import TABLE_SIZE, VELOCITY, search_tolerance, step_sums, tilt_allowance
from .statistics import ROUNDING

LEAST_BITS = tl.constexpr(certificate.LEAST_BITS)
RENYI_MARGIN = tl.constexpr(certificate.RENYI_MARGIN)
EXPONENT_ROUNDINGS = tl.constexpr(certificate.EXPONENT_ROUNDINGS)
TILT_ROUNDINGS = tl.constexpr(certificate.TILT_ROUNDINGS)
LEAST_SHARE = tl.constexpr(certificate.LEAST_SHARE)

NEWTON_STEPS = tl.constexpr(12)
MAX_ORDER_STEPS = tl.constexpr(72)
"""Newton takes three to six. After its steps bisection, a bit of the mantissa each."""


@triton.jit
def search_weight(
    row,
    order,
    is_open,
    counter_ptr,
    BLOCK_SIZE: tl.constexpr,
    STEP_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """The largest feasible weight measured, its divergence with the margin in nats, and log2 of its
    partition sum less that at weight 0. One pass over the vocabulary a step."""
    allowance = tilt_allowance(row)
    tolerance = search_tolerance(row, allowance)
    # 1. Weight 0 is the safe model on the support. Near it the divergence is about
    #    order * weight^2 variance / 2, which makes the first trial; 1 where nothing is tilted.
    best, best_nats = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    best_margin, best_ratio = tl.zeros((), tl.float64), tl.zeros((), tl.float64)
    high, step = tl.full((), at.INF, tl.float64), tl.full((), 0, tl.int32)
    trial = tl.load(row.table + VELOCITY * TABLE_SIZE)
    trial *= tl.sqrt((allowance - 0.5 * tolerance) / order)
    trial = tl.where(trial < 1.0, trial, 1.0)
    while is_open:
        # 2. The divergence and its margin. Only weights at which both fit are kept, so the search
        #    may end anywhere.
        _measure_weight(row, step, trial, order, BLOCK_SIZE, STEP_SIZE)
        at.row_barrier(counter_ptr, row.num_splits)
        nats, margin, log2_ratio, slope = _divergence(row, step, trial, order, NUM_SLOTS)
        fits = nats + margin <= allowance
        best, best_nats = tl.where(fits, trial, best), tl.where(fits, nats, best_nats)
        best_margin = tl.where(fits, margin, best_margin)
        best_ratio = tl.where(fits, log2_ratio, best_ratio)
        high = tl.where(fits, high, trial)
        # 3. Half a slack below the allowance is aimed at, to end on this side of it.
        slack = tl.maximum(tolerance, 4.0 * best_margin)
        root, aim = tl.sqrt(nats), tl.sqrt(tl.maximum(allowance - 0.5 * slack, 0.0))
        following = tl.minimum(trial + (aim - root) * 2.0 * root / slope, 1.0)
        middle = best + 0.5 * (tl.minimum(high, 1.0) - best)
        is_newton = (following > best) & (following < high) & (step < NEWTON_STEPS)
        trial = tl.where(is_newton, following, tl.where(high == at.INF, 1.0, middle))
        # 4. The end: near enough, the whole risky model, or no number left to try.
        step += 1
        is_open = (best < 1.0) & (best_nats < allowance - slack) & (step < MAX_ORDER_STEPS)
        is_open &= (best < trial) & (trial < high)
    return best, best_nats + best_margin, best_ratio


@triton.jit
def _measure_weight(row, step, weight, order, BLOCK_SIZE: tl.constexpr, STEP_SIZE: tl.constexpr):
    """Sums of the tilt in every block of this split: of weights and of them times the tilt, at the
    weight, and at the order times it with the block's largest exponent taken out, for those are
    large; that exponent, and the largest tilt."""
    far, parity = order * weight, step % 2
    for block in range(row.split, row.num_blocks, row.num_splits):
        peak = tl.full([at.NUM_LANES], -at.INF, tl.float64)
        reach = tl.zeros([at.NUM_LANES], tl.float64)
        for start in range(0, BLOCK_SIZE, STEP_SIZE):
            _, is_shared, safe, tilt = at.read_bits(row, block * BLOCK_SIZE + start, STEP_SIZE)
            bits = tl.where(is_shared, safe + far * tilt, -at.INF)
            peak = tl.maximum(peak, at.largest_in_lanes(bits))
            reach = tl.maximum(reach, at.largest_in_lanes(tl.abs(tilt)))
        peak = tl.max(peak, 0)
        base = tl.where(peak > -at.INF, peak, 0.0)
        sums = tl.zeros([at.NUM_LANES, 2, 2], tl.float64)
        for start in range(0, BLOCK_SIZE, STEP_SIZE):
            _, is_shared, safe, tilt = at.read_bits(row, block * BLOCK_SIZE + start, STEP_SIZE)
            here = at.weights(safe + weight * tilt, is_shared)
            there = at.weights(safe + far * tilt - base, is_shared)
            sums += at.pair_sums(here, here * tilt, there, there * tilt)
        at.store_power_sums(row, step_sums(step), block, sums)
        at.store_record(row, at.FAR_PEAK + parity, block, peak)
        at.store_record(row, at.REACH + parity, block, tl.max(reach, 0))


@triton.jit
def _divergence(row, step, weight, order, NUM_SLOTS: tl.constexpr):
    """D, its margin, log2 Z(weight) / Z(0), and dD / d weight; see `cpu.tilt` and the certificate.

    D = (log Z(order weight) - order log Z(weight)) / (order - 1) + log Z(0) in nats, Z the
    partition sum; inf where it is not known.
    """
    column, parity, far, rest = step_sums(step), step % 2, order * weight, order - 1.0
    peaks = at.load_record(row, at.FAR_PEAK + parity, -at.INF, NUM_SLOTS)
    peak = tl.max(peaks, 0)
    scale = at.weights(peaks - peak, peaks > -at.INF)
    reach = tl.max(at.load_record(row, at.REACH + parity, 0.0, NUM_SLOTS), 0)
    here = tl.sum(at.load_record(row, column, 0.0, NUM_SLOTS), 0)
    mean = tl.sum(at.load_record(row, column + 1, 0.0, NUM_SLOTS), 0) / here
    there = tl.sum(scale * at.load_record(row, column + 2, 0.0, NUM_SLOTS), 0)
    far_mean = tl.sum(scale * at.load_record(row, column + 3, 0.0, NUM_SLOTS), 0) / there
    log2_shared = tl.load(row.facts + at.LOG2_SHARED)
    log2_here, log2_far = tl.log2(here), peak + tl.log2(there)
    log_here, log_far, log_0 = log2_here * at.LN_2, log2_far * at.LN_2, log2_shared * at.LN_2
    nats = tl.maximum((log_far - order * log_here) / rest + log_0, 0.0)
    error = _error_of_log(log_far, far, reach) + order * _error_of_log(log_here, weight, reach)
    margin = RENYI_MARGIN * (error / rest + _error_of_log(log_0, 0.0, reach))
    is_untilted = reach == 0.0  # both models agree on the support: no divergence at any weight
    is_known = (log2_here > LEAST_BITS) & (nats + margin < at.INF)
    nats = tl.where(is_untilted, 0.0, tl.where(is_known, nats, at.INF))
    slope = order * (far_mean - mean) * at.LN_2 / rest
    return nats, tl.where(is_untilted, 0.0, margin), log2_here - log2_shared, slope


@triton.jit
def _error_of_log(log_partition, weight, reach):
    """Nats, bound of the error of log Z(weight); reach in bits."""
    exponents = tl.abs(log_partition) + (1.0 + weight) * reach * at.LN_2 + LEAST_SHARE
    return ROUNDING + at.EPSILON * (EXPONENT_ROUNDINGS + TILT_ROUNDINGS * weight) * exponents
