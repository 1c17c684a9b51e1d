"""The coupled sampler over blocks: CDFs inverted in two levels, as in `sampler`."""

import triton
import triton.language as tl

from .triton_layout import (
    BANNED_MASS,
    CEILING,
    IS_SAFE_ONLY,
    LOG2_SAFE_MASS,
    OFFSET,
    RESIDUAL_MASS,
    RISKY_PEAK,
    SAFE_MAX,
    SAFE_PEAK,
    SHARED_MASS,
    SLOPE,
)
from .triton_tokens import INF, LOG2_E, load_blocks, read_bits, shared_bits, without_masks

# What a draw weighs tokens by.
SAFE = tl.constexpr(0)
RESIDUAL = tl.constexpr(1)
SHARED = tl.constexpr(2)


UNIT_53 = tl.constexpr(2.0**-53)


@triton.jit
def uniforms(seed, position):
    """The three uniforms of (seed, position), int64 both; see `uniforms.uniforms`."""
    a, b, c, d = tl.randint4x(seed, 2 * position)
    e, f, _, _ = tl.randint4x(seed, 2 * position + 1)
    return _unit(a, b), _unit(c, d), _unit(e, f)


@triton.jit
def _unit(high, low):
    high = high.to(tl.uint32, bitcast=True).to(tl.int64)
    low = low.to(tl.uint32, bitcast=True).to(tl.int64)
    return ((high << 21) | (low >> 11)).to(tl.float64) * UNIT_53


@triton.jit
def token_at(
    safe_ptr,
    risky_ptr,
    safe_stride,
    risky_stride,
    records_ptr,
    facts_ptr,
    uniform,
    vocab_size,
    num_blocks,
    KIND: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    NUM_SLOTS: tl.constexpr,
):
    """The token at which the running sum of weights of KIND passes uniform times their total."""
    masses = block_masses(records_ptr, facts_ptr, num_blocks, KIND, NUM_SLOTS)
    block, target = _first_above(masses, uniform, NUM_SLOTS)
    weights = _weights(
        safe_ptr,
        risky_ptr,
        safe_stride,
        risky_stride,
        facts_ptr,
        block,
        vocab_size,
        KIND,
        BLOCK_SIZE,
    )
    return block * BLOCK_SIZE + _place_above(weights, target, BLOCK_SIZE)


@triton.jit
def block_masses(records_ptr, facts_ptr, num_blocks, KIND: tl.constexpr, NUM_SLOTS: tl.constexpr):
    """(NUM_SLOTS,) weight of each block, relative to the row's largest safe logit."""
    if KIND == RESIDUAL:
        masses = load_blocks(records_ptr + RESIDUAL_MASS * num_blocks, num_blocks, 0.0, NUM_SLOTS)
    else:
        safe_max = load_blocks(records_ptr + SAFE_MAX * num_blocks, num_blocks, -INF, NUM_SLOTS)
        masses = load_blocks(records_ptr + SHARED_MASS * num_blocks, num_blocks, 0.0, NUM_SLOTS)
        if KIND == SAFE:
            masses += load_blocks(
                records_ptr + BANNED_MASS * num_blocks, num_blocks, 0.0, NUM_SLOTS
            )
        scale = tl.exp2((safe_max - tl.load(facts_ptr + SAFE_PEAK)) * LOG2_E)
        masses = tl.where(safe_max > -INF, scale * masses, 0.0)
    return masses


@triton.jit
def _first_above(masses, uniform, NUM_SLOTS: tl.constexpr):
    """The block that holds the point, and how far behind the block's beginning it lies."""
    running_sum = tl.cumsum(masses, 0)
    target = uniform * tl.max(running_sum, 0)
    block = _place_above(masses, target, NUM_SLOTS)
    return block, target - tl.sum(tl.where(tl.arange(0, NUM_SLOTS) < block, masses, 0.0), 0)


@triton.jit
def _place_above(weights, target, SIZE: tl.constexpr):
    """First place whose running sum is above the target, else the last with a positive weight."""
    places = tl.arange(0, SIZE)
    is_above = (tl.cumsum(weights, 0) > target) & (weights > 0.0)
    first = tl.min(tl.where(is_above, places, SIZE), 0)
    last = tl.max(tl.where(weights > 0.0, places, 0), 0)
    return tl.minimum(first, last)


@triton.jit
def _weights(
    safe_ptr,
    risky_ptr,
    safe_stride,
    risky_stride,
    facts_ptr,
    block,
    vocab_size,
    KIND: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """(BLOCK_SIZE,) float64 weights of one block, at least 0."""
    safe_peak = tl.load(facts_ptr + SAFE_PEAK)
    safe = read_bits(safe_ptr, safe_stride, safe_peak, block, vocab_size, BLOCK_SIZE)
    weights = tl.exp2(safe)
    if KIND != SAFE:
        risky_peak = tl.load(facts_ptr + RISKY_PEAK)
        risky = read_bits(risky_ptr, risky_stride, risky_peak, block, vocab_size, BLOCK_SIZE)
        is_shared, tilt = shared_bits(safe, risky)
        if KIND == RESIDUAL:
            ratio = log2_ratio(facts_ptr, tilt)
            weights = tl.maximum(tl.exp2(safe + ratio) - weights, 0.0)
        weights = tl.where(is_shared, weights, 0.0)
    return weights


@triton.jit
def log2_ratio(facts_ptr, tilt):
    """log2 of p* / p_s on the common support."""
    slope, offset = tl.load(facts_ptr + SLOPE), tl.load(facts_ptr + OFFSET)
    return tl.minimum(slope * tilt + offset, tl.load(facts_ptr + CEILING))


@triton.jit
def measure_residual(
    safe_ptr,
    risky_ptr,
    safe_stride,
    risky_stride,
    records_ptr,
    facts_ptr,
    split,
    vocab_size,
    num_blocks,
    BLOCK_SIZE: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):
    """Mass of (p* - p_s)+ in every block of this split, in units of the largest safe weight."""
    for block in range(split, num_blocks, NUM_SPLITS):
        weights = _weights(
            safe_ptr,
            risky_ptr,
            safe_stride,
            risky_stride,
            facts_ptr,
            block,
            vocab_size,
            RESIDUAL,
            BLOCK_SIZE,
        )
        tl.store(records_ptr + RESIDUAL_MASS * num_blocks + block, tl.sum(weights, 0))


@triton.jit
def token_bits(safe_ptr, risky_ptr, safe_stride, risky_stride, facts_ptr, flags_ptr, token):
    """log2 p_s and log2 of p* / p_s of one token; the ratio is -inf off the common support."""
    token = token.to(tl.int64)
    safe = tl.load(safe_ptr + token * safe_stride).to(tl.float64)
    risky = tl.load(risky_ptr + token * risky_stride).to(tl.float64)
    safe = without_masks(safe - tl.load(facts_ptr + SAFE_PEAK)) * LOG2_E
    risky = without_masks(risky - tl.load(facts_ptr + RISKY_PEAK)) * LOG2_E
    is_shared, tilt = shared_bits(safe, risky)
    ratio = tl.where(is_shared, log2_ratio(facts_ptr, tilt), -INF)
    ratio = tl.where(tl.load(flags_ptr + IS_SAFE_ONLY) > 0, 0.0, ratio)
    return safe - tl.load(facts_ptr + LOG2_SAFE_MASS), ratio
