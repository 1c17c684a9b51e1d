"""The kernel: the rows of each request walked in order, solved, drawn from and banked."""

import triton
import triton.language as tl

from .triton_account import allowance, bank, begin_walk, rounded_down, row_step
from .triton_barrier import request_barrier
from .triton_layout import (
    BUDGET,
    IS_VALID,
    NUM_FACTS,
    NUM_FLAGS,
    NUM_RECORDS,
    NUM_STEPS,
    ROW_STEP,
    WAS_REACHED,
)
from .triton_points import NUM_COLUMNS, TABLE_SIZE
from .triton_sampler import draft, drawn_token, row_uniforms, store_token
from .triton_solver import SEARCHING, open_row, search_step, settle
from .triton_statistics import finite_masks, measure_statistics
from .triton_tokens import INF

# Phases. ALL runs them in one launch with barriers between; where programs run one after another,
# as in the interpreter, a launch runs one phase of one position.
ALL = tl.constexpr(0)
STATISTICS = tl.constexpr(1)
MASKS = tl.constexpr(2)
SEARCH = tl.constexpr(3)
SETTLE = tl.constexpr(4)
FINISH = tl.constexpr(5)

# Modes: what happens to the law.
SOLVE = tl.constexpr(0)
DRAW = tl.constexpr(1)
SCORE = tl.constexpr(2)


@triton.jit
def walk_kernel(
    risky_ptr,
    safe_ptr,
    risky_request_stride,
    risky_row_stride,
    risky_stride,
    safe_request_stride,
    safe_row_stride,
    safe_stride,
    budget_ptr,
    account_ptr,
    uniform_ptr,
    seeds_ptr,
    given_ptr,
    facts_ptr,
    flags_ptr,
    tokens_ptr,
    walks_ptr,
    records_ptr,
    table_ptr,
    counters_ptr,
    vocab_size,
    num_blocks,
    num_positions,
    first_position,
    last_position,
    first_step,
    PHASE: tl.constexpr,
    MODE: tl.constexpr,
    IS_MAX: tl.constexpr,
    HAS_ACCOUNT: tl.constexpr,
    HAS_SEEDS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Grid (NUM_SPLITS, requests). Every program of a request computes the same scalars and writes
    the same bits, so that no program waits for another's decision; only sums cross programs."""
    split, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    counter_ptr = counters_ptr + request
    walk_ptr = walks_ptr + request * 2 * (num_positions + 1)
    for index in range(first_position, last_position):
        # 1. Where the row and its scratch lie, and whether the walk comes this far.
        row = request * num_positions + index
        position = row - request * num_positions  # int64, as offsets need
        risky_row = risky_ptr + request * risky_request_stride + position * risky_row_stride
        safe_row = safe_ptr + request * safe_request_stride + position * safe_row_stride
        facts, flags = facts_ptr + row * NUM_FACTS, flags_ptr + row * NUM_FLAGS
        records = records_ptr + row * NUM_RECORDS * num_blocks
        table = table_ptr + row * NUM_COLUMNS * TABLE_SIZE
        here_ptr = walk_ptr + 2 * position
        if (PHASE == ALL) | (PHASE == STATISTICS):
            if position == 0:
                begin_walk(here_ptr, account_ptr, request, HAS_ACCOUNT)
                tl.debug_barrier()
        is_reached = tl.load(here_ptr) > 0.0
        if (PHASE == ALL) | (PHASE == STATISTICS):
            tl.store(flags + WAS_REACHED, is_reached.to(tl.uint8))
        if is_reached:
            # 2. The statistics pass, and another where finite logits turn out to be masks.
            if (PHASE == ALL) | (PHASE == STATISTICS):
                if HAS_ACCOUNT:
                    budget = allowance(account_ptr, request, position, tl.load(here_ptr + 1))
                    tl.store(facts + ROW_STEP, row_step(account_ptr, request, position))
                else:
                    budget = rounded_down(tl.load(budget_ptr + row).to(tl.float64))
                tl.store(facts + BUDGET, budget)
                measure_statistics(
                    risky_row,
                    safe_row,
                    risky_stride,
                    safe_stride,
                    records,
                    -INF,
                    -INF,
                    split,
                    vocab_size,
                    num_blocks,
                    BLOCK_SIZE,
                    NUM_SPLITS,
                    IS_MAX,
                )
            if PHASE == ALL:
                request_barrier(counter_ptr, NUM_SPLITS)
            if (PHASE == ALL) | (PHASE == MASKS):
                has_masks, risky_peak, safe_peak = finite_masks(records, num_blocks, NUM_SLOTS)
                if has_masks:
                    measure_statistics(
                        risky_row,
                        safe_row,
                        risky_stride,
                        safe_stride,
                        records,
                        risky_peak,
                        safe_peak,
                        split,
                        vocab_size,
                        num_blocks,
                        BLOCK_SIZE,
                        NUM_SPLITS,
                        IS_MAX,
                    )
                    if PHASE == ALL:
                        request_barrier(counter_ptr, NUM_SPLITS)

            # 3. The search, one pass over the vocabulary a step.
            step = first_step
            if PHASE == SEARCH:
                if step == 0:
                    open_row(records, facts, flags, table, num_blocks, NUM_SLOTS, IS_MAX)
                if tl.load(facts + NUM_STEPS) == SEARCHING:
                    search_step(
                        risky_row,
                        safe_row,
                        risky_stride,
                        safe_stride,
                        records,
                        facts,
                        table,
                        step,
                        split,
                        vocab_size,
                        num_blocks,
                        BLOCK_SIZE,
                        NUM_SLOTS,
                        NUM_SPLITS,
                        IS_MAX,
                    )
            if PHASE == ALL:
                is_searching = open_row(records, facts, flags, table, num_blocks, NUM_SLOTS, IS_MAX)
                while is_searching:
                    is_searching = search_step(
                        risky_row,
                        safe_row,
                        risky_stride,
                        safe_stride,
                        records,
                        facts,
                        table,
                        step,
                        split,
                        vocab_size,
                        num_blocks,
                        BLOCK_SIZE,
                        NUM_SLOTS,
                        NUM_SPLITS,
                        IS_MAX,
                    )
                    if is_searching:
                        request_barrier(counter_ptr, NUM_SPLITS)
                        step += 1

            # 4. The law, the draft, and the masses of the residual if the draft is not kept.
            if (PHASE == ALL) | (PHASE == SETTLE):
                if PHASE == SETTLE:
                    step = tl.load(facts + NUM_STEPS).to(tl.int32)
                settle(facts, flags, table, step, IS_MAX)
                if MODE == DRAW:
                    first, second, _ = row_uniforms(
                        uniform_ptr, seeds_ptr, facts, request, row, HAS_SEEDS
                    )
                    is_kept = draft(
                        risky_row,
                        safe_row,
                        risky_stride,
                        safe_stride,
                        records,
                        facts,
                        flags,
                        first,
                        second,
                        split,
                        vocab_size,
                        num_blocks,
                        BLOCK_SIZE,
                        NUM_SLOTS,
                        NUM_SPLITS,
                    )
                    if PHASE == ALL:
                        if not is_kept:
                            request_barrier(counter_ptr, NUM_SPLITS)

            # 5. The token, its log-probabilities, and whether the next row is reached.
            if (PHASE == ALL) | (PHASE == FINISH):
                token = tl.full((), -1, tl.int64)
                if MODE == DRAW:
                    _, _, third = row_uniforms(
                        uniform_ptr, seeds_ptr, facts, request, row, HAS_SEEDS
                    )
                    token = drawn_token(
                        risky_row,
                        safe_row,
                        risky_stride,
                        safe_stride,
                        records,
                        facts,
                        flags,
                        third,
                        vocab_size,
                        num_blocks,
                        BLOCK_SIZE,
                        NUM_SLOTS,
                    )
                if MODE == SCORE:
                    token = tl.load(given_ptr + row)
                if MODE != SOLVE:
                    store_token(
                        risky_row,
                        safe_row,
                        risky_stride,
                        safe_stride,
                        facts,
                        flags,
                        tokens_ptr + row,
                        token,
                    )
                is_going = tl.load(flags + IS_VALID) > 0
                if MODE == DRAW:
                    if position + 1 < num_positions:
                        drafts = given_ptr + request * (num_positions - 1)
                        is_going &= tl.load(drafts + position) == token
                bank(
                    here_ptr,
                    facts,
                    flags,
                    account_ptr,
                    request,
                    split,
                    position,
                    num_positions,
                    is_going,
                    HAS_ACCOUNT,
                )
        else:
            if (PHASE == ALL) | (PHASE == FINISH):
                tl.store(here_ptr + 2, 0.0)
        tl.debug_barrier()
