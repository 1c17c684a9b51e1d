"""One step of either solver, and the law it ends with: what the walk calls between barriers."""

import triton
import triton.language as tl

from . import spend
from .triton_clipping import (
    MISSING_MASS,
    begin_scale,
    best_scale,
    clip_ceiling,
    clipped_spend,
    measure_cut,
    next_offset,
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
from .triton_search import best_point, kl_allowance, next_betas
from .triton_statistics import merge_extremes, merge_masses
from .triton_tokens import INF, LN_2

QUANTUM = tl.constexpr(spend.SPEND_QUANTUM)

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
    if IS_MAX:
        merge_extremes(records_ptr, facts_ptr, num_blocks, NUM_SLOTS)
        tl.debug_barrier()
        is_open = is_valid & (tl.load(facts_ptr + FLOOR) <= clip_ceiling(facts_ptr) * LN_2)
        begin_scale(facts_ptr, table_ptr)
    else:
        is_open = is_valid & (tl.load(facts_ptr + BUDGET) > 0.0) & (kl_allowance(facts_ptr) >= 0.0)
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
    """As `search_beta`, for the offset of the clipped law."""
    is_over = step < 0
    if step > 0:
        sums_ptr = step_sums(records_ptr, step - 1, num_blocks)
        is_over = next_offset(facts_ptr, table_ptr, sums_ptr, step, num_blocks, NUM_SLOTS)
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
    if IS_MAX:
        offset, total = best_scale(table_ptr, step)
        # Where rounding leaves mass missing, p* stays p_s.
        is_open &= tl.abs(1.0 - total) <= MISSING_MASS
        excess = tl.log2(tl.where(is_open, total, 1.0))
        slope = 1.0
        weight = tl.minimum(tl.exp2(unscaled_offset(facts_ptr) - offset), 1.0)
        spent = clipped_spend(facts_ptr, offset, excess)
        offset -= excess
        tl.store(facts_ptr + CEILING, tl.where(is_open, clip_ceiling(facts_ptr) - excess, INF))
    else:
        slope, kl, log2_partition = best_point(facts_ptr, table_ptr, step)
        weight, spent = slope, kl + tl.load(facts_ptr + FLOOR)
        offset = tl.load(facts_ptr + LOG2_SAFE_MASS) - log2_partition
        tl.store(facts_ptr + CEILING, INF)
    spent = tl.ceil(spent / QUANTUM) * QUANTUM
    tl.store(facts_ptr + WEIGHT, tl.where(is_open, weight, 0.0))
    tl.store(facts_ptr + SPEND, tl.where(is_open, spent, 0.0))
    tl.store(facts_ptr + SLOPE, tl.where(is_open, slope, 0.0))
    tl.store(facts_ptr + OFFSET, tl.where(is_open, offset, 0.0))
    tl.store(flags_ptr + IS_SAFE_ONLY, (~is_open).to(tl.uint8))
    tl.debug_barrier()
