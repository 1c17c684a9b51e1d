"""One step of either solver, and the law it ends with: what the walk calls between barriers."""

import triton
import triton.language as tl

from .triton_clipping import (
    MAX_CLIP_STEPS,
    MISSING_MASS,
    clip_ceiling,
    clipped_spend,
    measure_cut,
    newton_offset,
    unscaled_offset,
)
from .triton_layout import (
    BUDGET,
    CEILING,
    FLOOR,
    IS_OPEN,
    IS_SAFE_ONLY,
    LOG2_SAFE_MASS,
    NUM_ESTIMATES,
    NUM_POINTS,
    NUM_STEPS,
    OFFSET,
    SLOPE,
    SPEND,
    WEIGHT,
)
from .triton_points import (
    BETA,
    TABLE_SIZE,
    absorb_points,
    measure_points,
    merge_estimates,
    step_sums,
)
from .triton_search import best_point, next_betas
from .triton_statistics import merge_extremes, merge_masses
from .triton_tokens import INF, LN_2

QUANTUM = tl.constexpr(2.0**-32)
"""SPEND_QUANTUM of `spend`."""

TOTALS = tl.constexpr(80)
"""Place in the table of `search_scale`'s totals; its offsets come before."""

SEARCHING = tl.constexpr(-1.0)
"""NUM_STEPS of a row while its search goes on."""


@triton.jit
def open_row(
    records_ptr,
    facts_ptr,
    flags_ptr,
    table_ptr,
    num_blocks,
    NUM_SLOTS: tl.constexpr,
    IS_MAX: tl.constexpr,
):
    """Merge the statistics of all blocks and decide whether there is anything to solve."""
    is_valid = merge_masses(records_ptr, facts_ptr, flags_ptr, num_blocks, NUM_SLOTS)
    tl.debug_barrier()
    budget, floor = tl.load(facts_ptr + BUDGET), tl.load(facts_ptr + FLOOR)
    if IS_MAX:
        is_open = is_valid & (budget > 0.0) & (floor <= clip_ceiling(facts_ptr) * LN_2)
        merge_extremes(records_ptr, facts_ptr, num_blocks, NUM_SLOTS)
        tl.debug_barrier()
        tl.store(table_ptr, unscaled_offset(facts_ptr))
    else:
        is_open = is_valid & (budget > 0.0) & (floor <= budget)
        merge_estimates(records_ptr, facts_ptr, table_ptr, num_blocks, NUM_SLOTS)
    tl.store(facts_ptr + IS_OPEN, is_open.to(tl.float64))
    tl.store(facts_ptr + NUM_STEPS, tl.where(is_open, SEARCHING, 0.0))
    tl.debug_barrier()
    return is_open


@triton.jit
def search_beta(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    records_ptr,
    facts_ptr,
    table_ptr,
    step,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Enter the last step's points, then measure the next ones; returns whether none are needed."""
    slot = NUM_ESTIMATES + step * NUM_POINTS
    slots = table_ptr + BETA * TABLE_SIZE + tl.arange(0, NUM_POINTS)
    if step > 0:
        slot_before = slot - NUM_POINTS
        sums_ptr = step_sums(records_ptr, step - 1, num_blocks)
        beta = tl.load(slots + slot_before)
        absorb_points(facts_ptr, table_ptr, sums_ptr, beta, slot_before, num_blocks, NUM_SLOTS)
        tl.debug_barrier()
    beta, is_over = next_betas(facts_ptr, table_ptr, step)
    if is_over:
        tl.store(facts_ptr + NUM_STEPS, step.to(tl.float64))
    else:
        tl.store(slots + slot, beta)
        measure_points(
            risky_ptr,
            safe_ptr,
            risky_stride,
            safe_stride,
            facts_ptr,
            step_sums(records_ptr, step, num_blocks),
            beta,
            split,
            vocab_size,
            num_blocks,
            BLOCK_SIZE,
            NUM_SPLITS,
        )
    tl.debug_barrier()
    return is_over


@triton.jit
def search_scale(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    records_ptr,
    facts_ptr,
    table_ptr,
    step,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """As `search_beta`; the table holds the offset of each step, then the total mass at it."""
    is_over = step < 0
    if step > 0:
        sums_ptr = step_sums(records_ptr, step - 1, num_blocks)
        offset = tl.load(table_ptr + step - 1)
        root, total, is_over = newton_offset(facts_ptr, sums_ptr, offset, num_blocks, NUM_SLOTS)
        is_over |= step >= MAX_CLIP_STEPS
        tl.store(table_ptr + step, root)
        tl.store(table_ptr + TOTALS + step, total)
        tl.debug_barrier()
    if is_over:
        tl.store(facts_ptr + NUM_STEPS, step.to(tl.float64))
    else:
        cut = clip_ceiling(facts_ptr) - tl.load(table_ptr + step)
        measure_cut(
            risky_ptr,
            safe_ptr,
            risky_stride,
            safe_stride,
            facts_ptr,
            step_sums(records_ptr, step, num_blocks),
            cut,
            split,
            vocab_size,
            num_blocks,
            BLOCK_SIZE,
            NUM_SPLITS,
        )
    tl.debug_barrier()
    return is_over


@triton.jit
def search_step(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    records_ptr,
    facts_ptr,
    table_ptr,
    step,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    IS_MAX: tl.constexpr,
):
    """One step of the solver of this divergence; returns whether another one is needed."""
    if IS_MAX:
        is_over = search_scale(
            risky_ptr,
            safe_ptr,
            risky_stride,
            safe_stride,
            records_ptr,
            facts_ptr,
            table_ptr,
            step,
            split,
            vocab_size,
            num_blocks,
            BLOCK_SIZE,
            NUM_SLOTS,
            NUM_SPLITS,
        )
    else:
        is_over = search_beta(
            risky_ptr,
            safe_ptr,
            risky_stride,
            safe_stride,
            records_ptr,
            facts_ptr,
            table_ptr,
            step,
            split,
            vocab_size,
            num_blocks,
            BLOCK_SIZE,
            NUM_SLOTS,
            NUM_SPLITS,
        )
    return ~is_over


@triton.jit
def settle(facts_ptr, flags_ptr, table_ptr, step, IS_MAX: tl.constexpr):
    """Write the law p* / p_s = 2**min(SLOPE d + OFFSET, CEILING), its weight and its spend."""
    is_open = tl.load(facts_ptr + IS_OPEN) > 0.0
    budget, floor = tl.load(facts_ptr + BUDGET), tl.load(facts_ptr + FLOOR)
    log2_safe_mass = tl.load(facts_ptr + LOG2_SAFE_MASS)
    if IS_MAX:
        offset, total = tl.load(table_ptr + step), tl.load(table_ptr + TOTALS + step)
        is_open &= 1.0 - total <= MISSING_MASS
        excess = tl.log2(tl.where(is_open, total, 1.0))
        slope = 1.0
        weight = tl.minimum(tl.exp2(unscaled_offset(facts_ptr) - offset), 1.0)
        offset -= excess
        tl.store(facts_ptr + CEILING, tl.where(is_open, clip_ceiling(facts_ptr) - excess, INF))
        tl.debug_barrier()
        spent = clipped_spend(facts_ptr, offset)
    else:
        slope, kl, log2_partition = best_point(facts_ptr, table_ptr, step)
        weight, offset, spent = slope, log2_safe_mass - log2_partition, kl + floor
        tl.store(facts_ptr + CEILING, INF)
    spent = tl.minimum(tl.ceil(spent / QUANTUM) * QUANTUM, budget)
    tl.store(facts_ptr + WEIGHT, tl.where(is_open, weight, 0.0))
    tl.store(facts_ptr + SPEND, tl.where(is_open, spent, 0.0))
    tl.store(facts_ptr + SLOPE, tl.where(is_open, slope, 0.0))
    tl.store(facts_ptr + OFFSET, tl.where(is_open, offset, 0.0))
    tl.store(flags_ptr + IS_SAFE_ONLY, (~is_open).to(tl.uint8))
    tl.debug_barrier()
