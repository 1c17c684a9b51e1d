"""The kernel: the rows of each request walked in order, solved, drawn from and banked."""

import triton
import triton.language as tl

from .. import spend
from .kl_search import NUM_COLUMNS, TABLE_SIZE
from .layout import (
    ADAPTIVE,
    BUDGET,
    DEBT,
    FIXED,
    INF,
    IS_VALID,
    NUM_ACCOUNT_FIELDS,
    NUM_FACTS,
    NUM_FLAGS,
    NUM_RECORDS,
    PER_STEP,
    ROW_STEP,
    SCHEDULE,
    SPEND,
    SPENT,
    STEP,
    TOTAL,
    WAS_REACHED,
    Row,
    request_barrier,
)
from .sampler import draft, drawn_token, row_uniforms, store_token
from .solver import QUANTUM, close_row, open_row, search_step
from .statistics import finite_masks, measure_statistics

BUDGET_CAP = tl.constexpr(spend.BUDGET_CAP)


@triton.jit
def begin_walk(walk_ptr, account_ptr, request):
    """The walk's memory before its first row: that it goes on, and nats spent so far.

    The account itself changes at the end of the walk, when slower programs may not yet have read
    it; so it is read here, before the first barrier, and nowhere later.
    """
    spent = 0.0
    if account_ptr is not None:
        spent = tl.load(account_ptr + request * NUM_ACCOUNT_FIELDS + SPENT)
    tl.store(walk_ptr, 1.0)
    tl.store(walk_ptr + 1, spent)


@triton.jit
def rounded_down(nats):
    """The multiple of the quantum, within +-BUDGET_CAP, that is not above the budget; 0 for NaN."""
    nats = tl.where(nats == nats, nats, 0.0)
    nats = tl.minimum(tl.maximum(nats, -BUDGET_CAP), BUDGET_CAP)
    return tl.floor(nats / QUANTUM) * QUANTUM


@triton.jit
def row_step(account_ptr, request, position):
    """The 0-based step of the generation that a row decides, as float64."""
    return tl.load(account_ptr + request * NUM_ACCOUNT_FIELDS + STEP) + position


@triton.jit
def allowance(account_ptr, request, position, spent):
    """k_t of the step that this row decides; the same arithmetic as `decode.rules.budget`."""
    step = row_step(account_ptr, request, position)
    account_ptr += request * NUM_ACCOUNT_FIELDS
    per_step, total = tl.load(account_ptr + PER_STEP), tl.load(account_ptr + TOTAL)
    debt, schedule = tl.load(account_ptr + DEBT), tl.load(account_ptr + SCHEDULE)
    accrued = tl.where(schedule == ADAPTIVE, tl.minimum(per_step * (step + 1.0), total), total)
    banked = rounded_down(tl.maximum(accrued - debt, 0.0)) - spent
    fixed = rounded_down(tl.maximum(per_step, 0.0))
    return tl.where(schedule == FIXED, fixed, tl.maximum(banked, 0.0))


@triton.jit
def bank(
    row,
    walk_ptr,
    account_ptr,
    request,
    position,
    num_positions,
    is_going,
):
    """Hand the spent nats to the next row, or to the account if the walk ends here."""
    is_committed = tl.load(row.flags + IS_VALID) > 0
    spent = tl.load(walk_ptr + 1) + tl.load(row.facts + SPEND)
    tl.store(walk_ptr + 2, is_going.to(tl.float64))
    tl.store(walk_ptr + 3, spent)
    if account_ptr is not None:
        is_last = (position + 1 == num_positions) | ~is_going
        if is_last & (row.split == 0):
            account_ptr += request * NUM_ACCOUNT_FIELDS
            step = tl.load(account_ptr + STEP) + position + is_committed.to(tl.float64)
            tl.store(account_ptr + STEP, step)
            tl.store(account_ptr + SPENT, spent)


# Loops and barriers alone ask for these: every value of them shares one compilation, but for a
# single split, which needs no barrier.
@triton.jit(
    do_not_specialize=("num_positions",),
    do_not_specialize_on_alignment=("num_splits",),
)
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
    drafts_ptr,
    facts_ptr,
    flags_ptr,
    tokens_ptr,
    walks_ptr,
    records_ptr,
    table_ptr,
    counters_ptr,
    vocab_size,
    num_blocks,
    num_splits,
    num_positions,
    HAS_DRAW: tl.constexpr,
    IS_MAX: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    STEP_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """Grid (requests, num_splits). Every program of a request computes the same scalars and writes
    the same bits, so that no program waits for another's decision; only sums cross programs."""
    request, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    counter_ptr = counters_ptr + request
    walk_ptr = walks_ptr + request * 2 * (num_positions + 1)
    for index in range(num_positions):
        # 1. Where the row and its scratch lie, and whether the walk comes this far.
        row_index = request * num_positions + index
        position = row_index - request * num_positions  # int64, as offsets need
        row = Row(
            risky_ptr + request * risky_request_stride + position * risky_row_stride,
            safe_ptr + request * safe_request_stride + position * safe_row_stride,
            risky_stride,
            safe_stride,
            facts_ptr + row_index * NUM_FACTS,
            flags_ptr + row_index * NUM_FLAGS,
            records_ptr + row_index * NUM_RECORDS * num_blocks,
            table_ptr + row_index * NUM_COLUMNS * TABLE_SIZE,
            split,
            num_splits,
            vocab_size,
            num_blocks,
        )
        here_ptr = walk_ptr + 2 * position
        if position == 0:
            begin_walk(here_ptr, account_ptr, request)
            tl.debug_barrier()  # the first entry of the walk, before all threads read it
        is_reached = tl.load(here_ptr) > 0.0
        tl.store(row.flags + WAS_REACHED, is_reached.to(tl.uint8))
        if is_reached:
            # 2. The statistics pass, and another where finite logits turn out to be masks.
            if account_ptr is not None:
                budget = allowance(account_ptr, request, position, tl.load(here_ptr + 1))
                tl.store(row.facts + ROW_STEP, row_step(account_ptr, request, position))
            else:
                budget = rounded_down(tl.load(budget_ptr + row_index).to(tl.float64))
            tl.store(row.facts + BUDGET, budget)
            # Twice at most, so that the kernel holds the pass once.
            risky_peak, safe_peak = tl.full((), -INF, tl.float64), tl.full((), -INF, tl.float64)
            is_measuring = tl.full((), True, tl.int1)
            while is_measuring:
                is_first = risky_peak == -INF
                measure_statistics(row, risky_peak, safe_peak, BLOCK_SIZE, STEP_SIZE, IS_MAX)
                request_barrier(counter_ptr, num_splits)
                has_masks, risky_peak, safe_peak = finite_masks(row, NUM_SLOTS)
                is_measuring = is_first & has_masks

            # 3. The search, one pass over the vocabulary a step.
            step = tl.full((), 0, tl.int32)
            is_searching = open_row(row, NUM_SLOTS, IS_MAX)
            while is_searching:
                is_searching = search_step(row, step, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS, IS_MAX)
                if is_searching:
                    request_barrier(counter_ptr, num_splits)
                    step += 1

            # 4. The law, the draft, and the masses of the residual if the draft is not kept.
            close_row(row, step, IS_MAX)
            token = tl.full((), -1, tl.int64)
            if HAS_DRAW:
                first, second, _ = row_uniforms(row, uniform_ptr, seeds_ptr, request, row_index)
                is_kept = draft(row, first, second, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS)
                if not is_kept:
                    request_barrier(counter_ptr, num_splits)
                # 5. The token, its log-probabilities, and whether the next row is reached.
                # Its uniform is made again, which takes no register over the passes of the draft.
                _, _, third = row_uniforms(row, uniform_ptr, seeds_ptr, request, row_index)
                token = drawn_token(row, third, BLOCK_SIZE, STEP_SIZE, NUM_SLOTS)
                store_token(row, tokens_ptr + row_index, token)
            is_going = tl.load(row.flags + IS_VALID) > 0
            if drafts_ptr is not None:
                if position + 1 < num_positions:
                    drafts = drafts_ptr + request * (num_positions - 1)
                    is_going &= tl.load(drafts + position) == token
            bank(row, here_ptr, account_ptr, request, position, num_positions, is_going)
        else:
            tl.store(here_ptr + 2, 0.0)
        tl.debug_barrier()  # what bank stored, before the next row reads it
