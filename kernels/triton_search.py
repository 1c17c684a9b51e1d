"""The search for the largest beta whose KL fits the budget: two measured points a step."""

import triton
import triton.language as tl

from .triton_layout import BUDGET, FLOOR, NUM_ESTIMATES, NUM_POINTS
from .triton_points import BETA, KL, KL_HIGH, LOG2_PARTITION, TABLE_SIZE, VELOCITY
from .triton_tokens import EPSILON, INF

MAX_STEPS = tl.constexpr(28)
"""(TABLE_SIZE - NUM_ESTIMATES) / NUM_POINTS; at the limit the feasible end is returned."""

NUM_GUIDED_STEPS = tl.constexpr(2)
"""Steps that interpolate between estimates; should those mislead, later ones do without them."""

ESTIMATE_ERROR = tl.constexpr(4e-6)
"""Usual relative error of an estimate, generously."""

SHORTFALL_FRACTION = tl.constexpr(0.9e-5)
SHORTFALL_NATS = tl.constexpr(0.9e-7)
"""The same as in `projection`."""


@triton.jit
def kl_allowance(facts_ptr):
    """Nats that the KL on the common support may take; see `projection`."""
    budget = tl.load(facts_ptr + BUDGET)
    return budget - tl.load(facts_ptr + FLOOR) - 4.0 * EPSILON * budget


@triton.jit
def next_betas(facts_ptr, table_ptr, step):
    """(NUM_POINTS,) betas to measure next, and whether the search is over.

    Only the points of earlier steps are looked at: another program may be ahead of this one.
    """
    allowance = kl_allowance(facts_ptr)
    tolerance = _tolerance(facts_ptr, allowance)
    slots = tl.arange(0, TABLE_SIZE)
    is_known = slots < NUM_ESTIMATES + step * NUM_POINTS
    beta = tl.load(table_ptr + BETA * TABLE_SIZE + slots, mask=is_known, other=2.0)
    kl = tl.load(table_ptr + KL * TABLE_SIZE + slots, mask=is_known, other=INF)
    kl_high = tl.load(table_ptr + KL_HIGH * TABLE_SIZE + slots, mask=is_known, other=INF)
    velocity = tl.load(table_ptr + VELOCITY * TABLE_SIZE + slots, mask=is_known, other=INF)
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
def _tolerance(facts_ptr, allowance):
    budget = tl.load(facts_ptr + BUDGET)
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
def best_point(facts_ptr, table_ptr, step):
    """The largest feasible beta measured: beta, its KL rounded up, log2 of its partition sum."""
    allowance = kl_allowance(facts_ptr)
    slots = tl.arange(0, TABLE_SIZE)
    is_known = slots < NUM_ESTIMATES + step * NUM_POINTS
    beta = tl.load(table_ptr + BETA * TABLE_SIZE + slots, mask=is_known, other=2.0)
    kl_high = tl.load(table_ptr + KL_HIGH * TABLE_SIZE + slots, mask=is_known, other=INF)
    log2_partition = tl.load(
        table_ptr + LOG2_PARTITION * TABLE_SIZE + slots, mask=is_known, other=0.0
    )
    is_feasible = kl_high <= allowance
    low = tl.max(tl.where(is_feasible, beta, 0.0), 0)
    is_low = is_feasible & (beta == low)
    return low, _at(kl_high, is_low), _at(log2_partition, is_low)
