"""The kernel of both projections: rows solved and drawn from, one by one."""

import triton
import triton.language as tl

from .. import spend
from .kl_search import NUM_COLUMNS, TABLE_SIZE
from .layout import (
    BUDGET,
    INF,
    NUM_FACTS,
    NUM_FLAGS,
    NUM_RECORDS,
    Row,
    row_barrier,
)
from .sampler import draft, measure_residual, replaced, row_uniforms, store_token
from .solver import QUANTUM, solve_row
from .statistics import finite_masks, measure_statistics

BUDGET_CAP = tl.constexpr(spend.BUDGET_CAP)


@triton.jit
def rounded_down(nats):
    """The multiple of the quantum, within +-BUDGET_CAP, that is not above the budget; 0 for NaN."""
    nats = tl.where(nats == nats, nats, 0.0)
    nats = tl.minimum(tl.maximum(nats, -BUDGET_CAP), BUDGET_CAP)
    return tl.floor(nats / QUANTUM) * QUANTUM


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
    IS_MAX: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    STEP_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """Grid (rows, num_splits). Every program of a row computes the same scalars and writes the same
    bits, so that no program waits for another's decision; only sums cross programs."""
    # 1. Where the row and its scratch lie.
    index, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    counter_ptr = counters_ptr + index
    row = Row(
        risky_ptr + index * risky_row_stride,
        safe_ptr + index * safe_row_stride,
        risky_stride,
        safe_stride,
        facts_ptr + index * NUM_FACTS,
        flags_ptr + index * NUM_FLAGS,
        records_ptr + index * NUM_RECORDS * num_blocks,
        table_ptr + index * NUM_COLUMNS * TABLE_SIZE,
        split,
        num_splits,
        vocab_size,
        num_blocks,
    )
    tl.store(row.facts + BUDGET, rounded_down(tl.load(budget_ptr + index).to(tl.float64)))

    # 2. The statistics pass, and another where finite logits turn out to be masks: twice at most,
    #    in a loop so that the kernel holds the pass once.
    risky_peak, safe_peak = tl.full((), -INF, tl.float64), tl.full((), -INF, tl.float64)
    is_measuring = tl.full((), True, tl.int1)
    while is_measuring:
        is_first = risky_peak == -INF
        measure_statistics(row, risky_peak, safe_peak, BLOCK_SIZE, STEP_SIZE, IS_MAX)
        row_barrier(counter_ptr, num_splits)
        has_masks, risky_peak, safe_peak = finite_masks(row, NUM_SLOTS)
        is_measuring = is_first & has_masks

    # 3. The law: the search for its weight or its scale, one pass over the vocabulary a step.
    solve_row(row, counter_ptr, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS, IS_MAX)

    # 4. The safe model's draft; where it is not kept, a token by the masses of the residual.
    if HAS_DRAW:
        first, second, _ = row_uniforms(uniform_ptr, keys_ptr, positions_ptr, index)
        token, is_kept = draft(row, first, second, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS)
        if not is_kept:
            measure_residual(row, BLOCK_SIZE, STEP_SIZE)
            row_barrier(counter_ptr, num_splits)
            # Made again, which takes no register over the passes before.
            _, _, third = row_uniforms(uniform_ptr, keys_ptr, positions_ptr, index)
            token, is_kept = replaced(row, token, third, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS)
        # 5. The token and its log-probabilities.
        store_token(row, tokens_ptr + index, token, is_kept)
