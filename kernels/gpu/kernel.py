"""The kernel of all projections: rows solved and drawn from, one by one."""

import triton
import triton.language as tl

from .. import spend
from . import layout as at
from .clip import (
    MISSING_MASS,
    clip_ceiling,
    clipped_spend,
    search_scale,
    token_bounds,
    unscaled_offset,
)
from .draw import draft, measure_residual, replaced, row_uniforms, store_token
from .kl import (
    BETA,
    KL_HIGH,
    LOG2_RATIO,
    NUM_COLUMNS,
    TABLE_SIZE,
    merge_estimates,
    search_beta,
    tilt_allowance,
)
from .statistics import finite_masks, measure_statistics, merge_extremes, merge_masses

BUDGET_CAP = tl.constexpr(spend.BUDGET_CAP)


@triton.jit
def rounded_down(nats):
    """The multiple of the quantum, within +-BUDGET_CAP, that is not above the budget; 0 for NaN."""
    nats = tl.where(nats == nats, nats, 0.0)
    nats = tl.minimum(tl.maximum(nats, -BUDGET_CAP), BUDGET_CAP)
    return tl.floor(nats / at.QUANTUM) * at.QUANTUM


@triton.jit
def open_row(row):
    """Merge the statistics of all blocks and decide whether there is anything to solve."""
    is_valid = merge_masses(row)
    tl.debug_barrier()  # both peaks, before the merges read them
    if row.CHARGE == "mean":
        is_open = is_valid & (tl.load(row.facts + at.BUDGET) > 0.0) & (tilt_allowance(row) >= 0.0)
        merge_estimates(row)
    else:
        merge_extremes(row)
        tl.debug_barrier()  # the ends of the tilt, before clip_ceiling reads them
        is_open = is_valid & (tl.load(row.facts + at.FLOOR) <= clip_ceiling(row) * at.LN_2)
    tl.debug_barrier()  # FLOOR and the table, before the search reads them
    return is_open


@triton.jit
def solve_row(row):
    """Write p* / p_s = 2**min(SLOPE d + OFFSET, CEILING), the weight and the spend."""
    is_open = open_row(row)
    if row.CHARGE == "mean":
        best = search_beta(row, is_open)
        slope, spent = tl.load(best + BETA * TABLE_SIZE), tl.load(best + KL_HIGH * TABLE_SIZE)
        weight, spent = slope, spent + tl.load(row.facts + at.FLOOR)
        offset = tl.load(row.facts + at.LOG2_SAFE_MASS) - tl.load(row.facts + at.LOG2_SHARED)
        offset -= tl.load(best + LOG2_RATIO * TABLE_SIZE)
        tl.store(row.facts + at.CEILING, at.INF)
    else:
        offset, total = search_scale(row, is_open)
        # Where rounding leaves mass missing, p* stays p_s.
        is_open &= tl.abs(1.0 - total) <= MISSING_MASS
        excess = tl.log2(tl.where(is_open, total, 1.0))
        slope = 1.0
        weight = tl.minimum(tl.exp2(unscaled_offset(row) - offset), 1.0)
        spent = clipped_spend(row, offset, excess)
        if row.CHARGE == "drawn":
            most, margin = token_bounds(row, offset, excess)
            tl.store(row.facts + at.TOKEN_MOST, tl.where(is_open, most, 0.0))
            tl.store(row.facts + at.TOKEN_MARGIN, tl.where(is_open, margin, 0.0))
        offset -= excess
        tl.store(row.facts + at.CEILING, tl.where(is_open, clip_ceiling(row) - excess, at.INF))
    spent = tl.ceil(spent / at.QUANTUM) * at.QUANTUM
    tl.store(row.facts + at.WEIGHT, tl.where(is_open, weight, 0.0))
    tl.store(row.facts + at.SPEND, tl.where(is_open, spent, 0.0))
    tl.store(row.facts + at.SLOPE, tl.where(is_open, slope, 0.0))
    tl.store(row.facts + at.OFFSET, tl.where(is_open, offset, 0.0))
    tl.store(row.flags + at.IS_SAFE_ONLY, (~is_open).to(tl.uint8))
    tl.debug_barrier()  # p*, before the draw reads it


@triton.jit
def project_row(
    row, budget_ptr, uniform_ptr, keys_ptr, positions_ptr, tokens_ptr, index, HAS_DRAW: tl.constexpr
):
    tl.store(row.facts + at.BUDGET, rounded_down(tl.load(budget_ptr + index).to(tl.float64)))
    # 1. The statistics pass, and another where finite logits turn out to be masks: twice at most,
    #    in a loop so that the kernel holds the pass once.
    risky_peak, safe_peak = tl.full((), -at.INF, tl.float64), tl.full((), -at.INF, tl.float64)
    is_measuring = tl.full((), True, tl.int1)
    while is_measuring:
        is_first = risky_peak == -at.INF
        measure_statistics(row, risky_peak, safe_peak)
        at.row_barrier(row)
        has_masks, risky_peak, safe_peak = finite_masks(row)
        is_measuring = is_first & has_masks

    # 2. p*: the search for its weight or its scale, one pass over the vocabulary a step.
    solve_row(row)

    # 3. The safe model's draft; where it is not kept, a token by the masses of the residual.
    if HAS_DRAW:
        first, second, _ = row_uniforms(uniform_ptr, keys_ptr, positions_ptr, index)
        token, is_kept = draft(row, first, second)
        if not is_kept:
            measure_residual(row)
            at.row_barrier(row)
            # Made again, which takes no register over the passes before.
            _, _, third = row_uniforms(uniform_ptr, keys_ptr, positions_ptr, index)
            token, is_kept = replaced(row, token, third)
        # 4. The token, its log-probabilities and its cost.
        store_token(row, tokens_ptr + index, token, is_kept)


# Loops and barriers alone ask for the number of splits: every value of it shares one compilation,
# but for a single split, which needs no barrier.
@triton.jit(do_not_specialize_on_alignment=("num_splits",))
def projection_kernel(
    risky_ptr,
    safe_ptr,
    risky_row_stride,
    risky_stride,
    safe_row_stride,
    safe_stride,
    budget_ptr,
    uniform_ptr,
    keys_ptr,
    positions_ptr,
    facts_ptr,
    flags_ptr,
    tokens_ptr,
    records_ptr,
    table_ptr,
    counters_ptr,
    vocab_size,
    num_blocks,
    num_splits,
    HAS_DRAW: tl.constexpr,
    CHARGE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    STEP_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """Grid (rows, num_splits). Every program of a row computes the same scalars and writes the same
    bits, so that no program waits for another's decision; only sums cross programs."""
    index, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    # Passed on at once: bound to a name, its constants would become values on the device.
    project_row(
        at.Row(
            risky_ptr + index * risky_row_stride,
            safe_ptr + index * safe_row_stride,
            risky_stride,
            safe_stride,
            facts_ptr + index * at.NUM_FACTS,
            flags_ptr + index * at.NUM_FLAGS,
            records_ptr + index * at.NUM_RECORDS * num_blocks,
            table_ptr + index * NUM_COLUMNS * TABLE_SIZE,
            counters_ptr + index,
            split,
            num_splits,
            vocab_size,
            num_blocks,
            BLOCK_SIZE,
            STEP_SIZE,
            NUM_SLOTS,
            CHARGE,
        ),
        budget_ptr,
        uniform_ptr,
        keys_ptr,
        positions_ptr,
        tokens_ptr,
        index,
        HAS_DRAW,
    )
