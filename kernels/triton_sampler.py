"""The coupled sampler for one row: the safe model's draft, kept or replaced."""

import triton
import triton.language as tl

from .triton_draw import (
    RESIDUAL,
    SAFE,
    SHARED,
    block_masses,
    measure_residual,
    token_at,
    token_bits,
    uniforms,
)
from .triton_layout import ACCEPTED, DRAFT, IS_KEPT, IS_VALID, LOG_PROB, ROW_STEP, SAFE_LOG_PROB
from .triton_tokens import INF, LN_2

NAN = tl.constexpr(float("nan"))


@triton.jit
def row_uniforms(uniform_ptr, seeds_ptr, facts_ptr, request, row, HAS_SEEDS: tl.constexpr):
    """The three uniforms of a row: given, or those of the request's seed at the row's step."""
    if HAS_SEEDS:
        count = tl.load(facts_ptr + ROW_STEP).to(tl.int64)
        first, second, third = uniforms(tl.load(seeds_ptr + request), count)
    else:
        first = tl.load(uniform_ptr + 3 * row)
        second = tl.load(uniform_ptr + 3 * row + 1)
        third = tl.load(uniform_ptr + 3 * row + 2)
    return first, second, third


@triton.jit
def draft(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    records_ptr,
    facts_ptr,
    flags_ptr,
    first,
    second,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Draw the safe model's token by u1 and see by u2 whether it stands; returns whether it does.

    Nothing is drawn in a row that is not valid; it counts as kept.
    """
    token = tl.full((), 0, tl.int32)
    is_kept = tl.load(flags_ptr + IS_VALID) == 0
    if not is_kept:
        token = token_at(
            safe_ptr,
            risky_ptr,
            safe_stride,
            risky_stride,
            records_ptr,
            facts_ptr,
            first,
            vocab_size,
            num_blocks,
            SAFE,
            BLOCK_SIZE,
            NUM_SLOTS,
        )
        _, ratio = token_bits(
            safe_ptr, risky_ptr, safe_stride, risky_stride, facts_ptr, flags_ptr, token
        )
        is_kept = second < tl.exp2(ratio)
    tl.store(facts_ptr + DRAFT, token.to(tl.float64))
    tl.store(facts_ptr + IS_KEPT, is_kept.to(tl.float64))
    if not is_kept:
        measure_residual(
            safe_ptr,
            risky_ptr,
            safe_stride,
            risky_stride,
            records_ptr,
            facts_ptr,
            split,
            vocab_size,
            num_blocks,
            BLOCK_SIZE,
            NUM_SPLITS,
        )
    tl.debug_barrier()
    return is_kept


@triton.jit
def drawn_token(
    risky_ptr,
    safe_ptr,
    risky_stride,
    safe_stride,
    records_ptr,
    facts_ptr,
    flags_ptr,
    third,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """The draft if it was kept, else the residual's token by u3; -1 in a row that is not valid."""
    token = tl.load(facts_ptr + DRAFT).to(tl.int32)
    is_kept = tl.load(facts_ptr + IS_KEPT) > 0.0
    if not is_kept:
        masses = block_masses(records_ptr, facts_ptr, num_blocks, RESIDUAL, NUM_SLOTS)
        if tl.sum(masses, 0) > 0.0:
            token = token_at(
                safe_ptr,
                risky_ptr,
                safe_stride,
                risky_stride,
                records_ptr,
                facts_ptr,
                third,
                vocab_size,
                num_blocks,
                RESIDUAL,
                BLOCK_SIZE,
                NUM_SLOTS,
            )
        else:
            # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
            _, ratio = token_bits(
                safe_ptr, risky_ptr, safe_stride, risky_stride, facts_ptr, flags_ptr, token
            )
            is_kept = ratio > -INF
            if not is_kept:
                token = token_at(
                    safe_ptr,
                    risky_ptr,
                    safe_stride,
                    risky_stride,
                    records_ptr,
                    facts_ptr,
                    third,
                    vocab_size,
                    num_blocks,
                    SHARED,
                    BLOCK_SIZE,
                    NUM_SLOTS,
                )
    is_valid = tl.load(flags_ptr + IS_VALID) > 0
    tl.store(flags_ptr + ACCEPTED, (is_kept & is_valid).to(tl.uint8))
    return tl.where(is_valid, token, -1).to(tl.int64)


@triton.jit
def store_token(
    risky_ptr, safe_ptr, risky_stride, safe_stride, facts_ptr, flags_ptr, token_ptr, token
):
    """The token with log p* and log p_s of it, in nats; NaN in a row that is not valid."""
    is_valid = tl.load(flags_ptr + IS_VALID) > 0
    safe, ratio = token_bits(
        safe_ptr,
        risky_ptr,
        safe_stride,
        risky_stride,
        facts_ptr,
        flags_ptr,
        tl.maximum(token, 0),
    )
    # A token that the safe model bans has p* = 0, whatever the ratio.
    log_prob = tl.where(safe > -INF, safe + ratio, -INF) * LN_2
    tl.store(token_ptr, tl.where(is_valid, token, -1))
    tl.store(facts_ptr + LOG_PROB, tl.where(is_valid, log_prob, NAN))
    tl.store(facts_ptr + SAFE_LOG_PROB, tl.where(is_valid, safe * LN_2, NAN))
