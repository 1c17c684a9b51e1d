"""The coupled sampler for one row: the safe model's draft, kept or replaced, by CDFs of blocks."""

import triton
import triton.language as tl

from . import layout as at
from .clip import token_spend

# What a draw weighs tokens by.
SAFE = tl.constexpr(0)
RESIDUAL = tl.constexpr(1)
SHARED = tl.constexpr(2)


UNIT_53 = tl.constexpr(2.0**-53)


@triton.jit
def uniforms(seed, position):
    """The three uniforms of (seed, position), int64 both; see `kernels.sampler.uniforms`."""
    a, b, c, d = tl.randint4x(seed, 2 * position)
    e, f, _, _ = tl.randint4x(seed, 2 * position + 1)
    return _unit(a, b), _unit(c, d), _unit(e, f)


@triton.jit
def _unit(high, low):
    high = high.to(tl.uint32, bitcast=True).to(tl.int64)
    low = low.to(tl.uint32, bitcast=True).to(tl.int64)
    return ((high << 21) | (low >> 11)).to(tl.float64) * UNIT_53


@triton.jit
def token_at(row, uniform, KIND: tl.constexpr):
    """The token at which the running sum of weights of KIND passes uniform times their total, else
    the last of its block with a positive weight."""
    masses = block_masses(row, KIND)
    block, target = _first_above(masses, uniform, row.NUM_SLOTS)
    running_sum = tl.zeros((), tl.float64)
    first, last = tl.full((), row.BLOCK_SIZE, tl.int32), tl.zeros((), tl.int32)
    for start in range(0, row.BLOCK_SIZE, row.STEP_SIZE):
        token_masses = _weights(row, block * row.BLOCK_SIZE + start, KIND, row.STEP_SIZE)
        offsets = start + tl.arange(0, row.STEP_SIZE)
        sums = running_sum + tl.cumsum(token_masses, 0)
        is_above = (sums > target) & (token_masses > 0.0)
        first = tl.minimum(first, tl.min(tl.where(is_above, offsets, row.BLOCK_SIZE), 0))
        last = tl.maximum(last, tl.max(tl.where(token_masses > 0.0, offsets, 0), 0))
        running_sum = tl.max(sums, 0)
    return block * row.BLOCK_SIZE + tl.minimum(first, last)


@triton.jit
def block_masses(row, KIND: tl.constexpr):
    """(row.NUM_SLOTS,) weight of each block, relative to the row's largest safe logit."""
    if KIND == RESIDUAL:
        masses = at.load_record(row, at.RESIDUAL_MASS, 0.0)
    else:
        safe_max = at.load_record(row, at.SAFE_MAX, -at.INF)
        masses = at.load_record(row, at.SHARED_MASS, 0.0)
        if KIND == SAFE:
            masses += at.load_record(row, at.BANNED_MASS, 0.0)
        bits = (safe_max - tl.load(row.facts + at.SAFE_PEAK)) * at.LOG2_E
        masses *= at.weights(bits, safe_max > -at.INF)
    return masses


@triton.jit
def _first_above(masses, uniform, NUM_SLOTS: tl.constexpr):
    """The block that holds the point, and how far after the block's beginning it lies."""
    running_sum, blocks = tl.cumsum(masses, 0), tl.arange(0, NUM_SLOTS)
    target = uniform * tl.max(running_sum, 0)
    is_above = (running_sum > target) & (masses > 0.0)
    last = tl.max(tl.where(masses > 0.0, blocks, 0), 0)
    block = tl.minimum(tl.min(tl.where(is_above, blocks, NUM_SLOTS), 0), last)
    return block, target - tl.sum(tl.where(blocks < block, masses, 0.0), 0)


@triton.jit
def _weights(row, first, KIND: tl.constexpr, SIZE: tl.constexpr):
    """(SIZE,) float64 weights from the token `first` on, at least 0."""
    is_safe, is_shared, safe, tilt = at.read_bits(row, first, SIZE)
    if KIND == SAFE:
        masses = at.weights(safe, is_safe)
    elif KIND == SHARED:
        masses = at.weights(safe, is_shared)
    else:
        masses = at.weights(safe + log2_ratio(row, tilt), is_shared) - at.weights(safe, is_shared)
        masses = tl.maximum(masses, 0.0)
    return masses


@triton.jit
def log2_ratio(row, tilt):
    """log2 of p* / p_s on the common support."""
    slope, offset = tl.load(row.facts + at.SLOPE), tl.load(row.facts + at.OFFSET)
    return tl.minimum(slope * tilt + offset, tl.load(row.facts + at.CEILING))


@triton.jit
def measure_residual(row):
    """Mass of (p* - p_s)+ in every block of this split, in units of the largest safe weight."""
    for block in range(row.split, row.num_blocks, row.num_splits):
        mass = tl.zeros([at.NUM_LANES], tl.float64)
        for start in range(0, row.BLOCK_SIZE, row.STEP_SIZE):
            mass += at.in_lanes(
                _weights(row, block * row.BLOCK_SIZE + start, RESIDUAL, row.STEP_SIZE)
            )
        at.store_record(row, at.RESIDUAL_MASS, block, tl.sum(mass, 0))


@triton.jit
def token_bits(row, token):
    """log2 p_s and log2 of p* / p_s of one token, -inf off the common support, and the bits of its
    tilt and its safe weight together."""
    is_safe, is_shared, safe, tilt = at.read_bits(row, token, 1)
    reach = tl.abs(tilt) + tl.abs(safe)
    ratio = tl.where(is_shared, log2_ratio(row, tilt), -at.INF)
    ratio = tl.where(tl.load(row.flags + at.IS_SAFE_ONLY) > 0, 0.0, ratio)
    safe = tl.where(is_safe, safe, -at.INF) - tl.load(row.facts + at.LOG2_SAFE_MASS)
    return tl.sum(safe, 0), tl.sum(ratio, 0), tl.sum(reach, 0)


@triton.jit
def row_uniforms(uniform_ptr, keys_ptr, positions_ptr, index):
    """The three uniforms of a row: the caller's, or those of its key and its position."""
    if keys_ptr is not None:
        key, position = tl.load(keys_ptr + index), tl.load(positions_ptr + index)
        first, second, third = uniforms(key, position)
    else:
        first = tl.load(uniform_ptr + 3 * index)
        second = tl.load(uniform_ptr + 3 * index + 1)
        third = tl.load(uniform_ptr + 3 * index + 2)
    return first, second, third


@triton.jit
def draft(row, first, second):
    """The safe model's token by u1, and whether u2 keeps it; any is kept in a row not valid."""
    token = tl.full((), 0, tl.int32)
    is_kept = tl.load(row.flags + at.IS_VALID) == 0
    if not is_kept:
        token = token_at(row, first, SAFE)
        _, ratio, _ = token_bits(row, token)
        is_kept = second < tl.exp2(ratio)
    return token, is_kept


@triton.jit
def replaced(row, token, third):
    """The residual's token by u3 in place of a draft that failed, and whether the draft stays."""
    is_kept = tl.full((), False, tl.int1)
    if tl.sum(block_masses(row, RESIDUAL), 0) > 0.0:
        token = token_at(row, third, RESIDUAL)
    else:
        # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
        _, ratio, _ = token_bits(row, token)
        is_kept = ratio > -at.INF
        if not is_kept:
            token = token_at(row, third, SHARED)
    return token, is_kept


@triton.jit
def store_token(row, token_ptr, token, is_kept):
    """The token, -1 in a row that is not valid, whether it is the safe model's, log p* and log p_s
    of it, in nats, NaN in a row that is not valid, and what it costs where it is charged."""
    is_valid = tl.load(row.flags + at.IS_VALID) > 0
    safe, ratio, reach = token_bits(row, token)
    # A token that the safe model bans has p* = 0, whatever the ratio.
    log_prob = tl.where(safe > -at.INF, safe + ratio, -at.INF) * at.LN_2
    # No global: Triton 3.9 compares globals with what they were, and NaN with nothing is the same.
    nan = float("nan")
    tl.store(token_ptr, tl.where(is_valid, token, -1).to(tl.int64))
    tl.store(row.flags + at.ACCEPTED, (is_kept & is_valid).to(tl.uint8))
    tl.store(row.facts + at.LOG_PROB, tl.where(is_valid, log_prob, nan))
    tl.store(row.facts + at.SAFE_LOG_PROB, tl.where(is_valid, safe * at.LN_2, nan))
    if row.CHARGE == "drawn":
        spent = tl.where(is_valid, token_spend(row, ratio, reach), 0.0)
        tl.store(row.facts + at.TOKEN_SPEND, spent)
