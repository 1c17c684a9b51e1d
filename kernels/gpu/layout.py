"""The memory layout of the Triton kernels, and how they read a block of tokens.

Every program of a row may write any fact of it, for all compute the same bits; so a fact must
not change once written, while slower programs may read it.
"""

import math
import sys
from typing import Any, NamedTuple

import triton
import triton.language as tl

from .. import spend


class Row(NamedTuple):
    """One row in kernels: pointers, strides in numbers, and sizes."""

    risky: Any
    """The risky model's logits of the row."""
    safe: Any
    risky_stride: Any
    """Between tokens."""
    safe_stride: Any
    facts: Any
    flags: Any
    records: Any
    table: Any
    counter: Any
    """int64, of arrivals at barriers: it counts for ever (2**63 are out of reach), so that a CUDA
    graph needs no reset."""
    split: Any
    """The index of this program among those that share the row."""
    num_splits: Any
    vocab_size: Any
    num_blocks: Any
    BLOCK_SIZE: Any
    """Tokens of a block; these four are constants of a compilation."""
    STEP_SIZE: Any
    """Tokens of it that are read at once."""
    NUM_SLOTS: Any
    """A power of 2, one value for every block."""
    CHARGE: Any


# Facts of a row, float64: what the whole row shares. The first ones are the results.
WEIGHT, SPEND, BUDGET, LOG_PROB, SAFE_LOG_PROB = map(tl.constexpr, range(5))
# Of charge "drawn": the spend, and both of `Projection.token_bounds`.
TOKEN_SPEND, TOKEN_MOST, TOKEN_MARGIN = map(tl.constexpr, range(5, 8))
SAFE_PEAK, RISKY_PEAK, LOG2_SAFE_MASS, SLOPE, OFFSET, CEILING = map(tl.constexpr, range(8, 14))
LOG2_SHARED, FLOOR, IS_UNTILTED = map(tl.constexpr, range(14, 17))
LOG2_RISKY, LARGEST_TILT, SMALLEST_TILT, NUM_FACTS = map(tl.constexpr, range(17, 21))

# Flags of a row, one byte each.
IS_VALID, IS_SAFE_ONLY, ACCEPTED, NUM_FLAGS = map(tl.constexpr, range(4))

# Records of a block, float64, each a vector over the blocks of the row; the least ones are of the
# finite logits, masks by a finite number among them.
NUM_ESTIMATES = tl.constexpr(6)
"""Estimated points of the curve, their betas equally far apart. With as many moments five took 1.31
passes of the search where the budget of ordinary rows binds, six 1.25 and eight 1.12."""
NUM_SUMS = tl.constexpr(4)  # of weights, and of weights times the tilt, its square and its cube
SAFE_MAX, RISKY_MAX, SAFE_MIN, RISKY_MIN, IS_BAD = map(tl.constexpr, range(5))
SHARED_MASS, BANNED_MASS, RESIDUAL_MASS, STEP_SUMS = map(tl.constexpr, range(5, 9))
ESTIMATES = tl.constexpr(STEP_SUMS.value + 2 * NUM_SUMS.value)  # after those of two steps in turn
NUM_RECORDS = tl.constexpr(ESTIMATES.value + NUM_SUMS.value * NUM_ESTIMATES.value)
# A clipped distribution has extremes in place of estimates.
RISKY_MASS, TILT_MAX, TILT_MIN = (tl.constexpr(ESTIMATES.value + i) for i in range(3))

LOG2_E = tl.constexpr(spend.BITS_PER_NAT)
LN_2 = tl.constexpr(math.log(2.0))
QUANTUM = tl.constexpr(spend.SPEND_QUANTUM)
INF = tl.constexpr(float("inf"))
LEAST_32 = tl.constexpr(-3.4028234663852886e38)
LEAST_64 = tl.constexpr(-sys.float_info.max)
BAN_GAP = tl.constexpr(spend.BAN_GAP)
EPSILON = tl.constexpr(spend.EPSILON)

NUM_LANES = tl.constexpr(32)
"""A program is one warp: what its lanes hold is summed without a barrier."""

TO_INTEGER = tl.constexpr(1.5 * 2.0**52)
"""Added to a float64, it leaves the nearest integer in the last digits of the sum."""

LEAST_POWER = tl.constexpr(-1000.0)
"""A lower power of 2 counts as 0, before float64 loses digits; no sum below 2**-900 is trusted."""

C1 = tl.constexpr(float.fromhex("0x1.62e42fefa37d5p-1"))
C2 = tl.constexpr(float.fromhex("0x1.ebfbdff81be0ap-3"))
C3 = tl.constexpr(float.fromhex("0x1.c6b08d70c8610p-5"))
C4 = tl.constexpr(float.fromhex("0x1.3b2ab7240fde0p-7"))
C5 = tl.constexpr(float.fromhex("0x1.5d87fd93c2800p-10"))
C6 = tl.constexpr(float.fromhex("0x1.430897f74f000p-13"))
C7 = tl.constexpr(float.fromhex("0x1.ffce2f1a00000p-17"))
C8 = tl.constexpr(float.fromhex("0x1.63e691f000000p-20"))
C9 = tl.constexpr(float.fromhex("0x1.b3deb30000000p-24"))


@triton.jit
def read_pair(row, first, SIZE: tl.constexpr):
    """(SIZE,) risky and safe logits from the token `first` on, -inf in the padding; in float64 if
    they are and else in float32, which holds them exactly."""
    tokens = first + tl.arange(0, SIZE)
    is_token, tokens = tokens < row.vocab_size, tokens.to(tl.int64)
    risky = tl.load(row.risky + tokens * row.risky_stride, mask=is_token, other=-INF)
    safe = tl.load(row.safe + tokens * row.safe_stride, mask=is_token, other=-INF)
    return _widened(row.risky, risky), _widened(row.safe, safe)


@triton.jit
def _widened(row_ptr, logits):
    if row_ptr.dtype.element_ty == tl.float64:
        return logits
    else:
        return logits.to(tl.float32)


@triton.jit
def ban_limit(peak, row_ptr):
    """The least logit that is not banned in a row with this peak, in the type logits are read in.

    Tokens more than BAN_GAP nats below the peak are banned, those of -inf always.
    """
    limit = peak - BAN_GAP
    if row_ptr.dtype.element_ty == tl.float64:
        return tl.maximum(limit, LEAST_64)
    else:
        limit = tl.maximum(limit, LEAST_32)
        rounded = limit.to(tl.float32)  # and then up: what it bans are the same logits
        digits = rounded.to(tl.int32, bitcast=True) + tl.where(rounded > 0.0, 1, -1)
        above = digits.to(tl.float32, bitcast=True)
        return tl.where(rounded.to(tl.float64) < limit, above, rounded)


@triton.jit
def read_bits(row, first, SIZE: tl.constexpr):
    """(SIZE,) from the token `first` on: which tokens the safe model allows, which both do, float64
    log2-weights of the safe model, 0 for its largest logit, and the tilt between the models in
    bits, 0 off the common support."""
    risky, safe = read_pair(row, first, SIZE)
    risky_peak, safe_peak = tl.load(row.facts + RISKY_PEAK), tl.load(row.facts + SAFE_PEAK)
    safe_bits = (safe.to(tl.float64) - safe_peak) * LOG2_E
    tilt = (risky.to(tl.float64) - risky_peak) * LOG2_E - safe_bits
    is_safe = safe >= ban_limit(safe_peak, row.safe)
    is_shared = is_safe & (risky >= ban_limit(risky_peak, row.risky))
    return is_safe, is_shared, safe_bits, tl.where(is_shared, tilt, 0.0)


@triton.jit
def store_record(row, column, block, values):
    """A record of a block, or several: column may be a vector, as long as values."""
    tl.store(row.records + column * row.num_blocks + block, values)


@triton.jit
def store_power_sums(row, column, block, sums):
    """The records of a block from `column` on: (lanes, 2, 2) sums of `weights.power_sums`."""
    two = tl.arange(0, 2)
    columns = column + two[:, None] + 2 * two[None, :]
    tl.store(row.records + columns * row.num_blocks + block, tl.sum(sums, 0).to(tl.float64))


@triton.jit
def load_record(row, column, other):
    """(row.NUM_SLOTS,) a record of every block, past the first-level cache: others wrote them."""
    blocks = tl.arange(0, row.NUM_SLOTS)
    pointers = row.records + column * row.num_blocks + blocks
    return tl.load(pointers, mask=blocks < row.num_blocks, other=other, cache_modifier=".cg")


@triton.jit
def row_barrier(row):
    """Wait until all programs of the row have come here.

    The launch must be cooperative: every program must be resident.
    """
    tl.debug_barrier()  # all threads' stores precede the arrival of the program
    if row.num_splits > 1:
        arrived = tl.atomic_add(row.counter, 1, sem="acq_rel")
        target = (arrived // row.num_splits + 1) * row.num_splits
        while tl.atomic_add(row.counter, 0, sem="acquire") < target:
            pass
        tl.debug_barrier()  # no thread goes on before the one that waited


@triton.jit
def weights(bits, is_there):
    """2**bits where is_there, else 0, and 0 where that is less than 2**LEAST_POWER; float64.

    bits: float64, at most 1000; any, NaN too, where not is_there.
    Relative error 2e-14; exactly 1 at 0. The library's takes twice the instructions.
    Source: Cody and Waite 1980, chapter 6, with the polynomial of least relative error.
    """
    shifted = bits + TO_INTEGER
    part = bits - (shifted - TO_INTEGER)
    series = C5 + part * (C6 + part * (C7 + part * (C8 + part * C9)))
    series = C1 + part * (C2 + part * (C3 + part * (C4 + part * series)))
    digits = (1.0 + part * series).to(tl.int64, bitcast=True)
    exponent = shifted.to(tl.int64, bitcast=True)
    powers = (digits + (exponent << 52)).to(tl.float64, bitcast=True)
    return tl.where(is_there & (bits > LEAST_POWER), powers, 0.0)


@triton.jit
def in_lanes(values):
    """(NUM_LANES,) sums of what each lane holds of the values, which are as many for every lane."""
    return tl.sum(tl.reshape(values, [NUM_LANES, values.shape[0] // NUM_LANES]), 1)


@triton.jit
def largest_in_lanes(values):
    """(NUM_LANES,) the largest of what each lane holds of the values."""
    return tl.max(tl.reshape(values, [NUM_LANES, values.shape[0] // NUM_LANES]), 1)


@triton.jit
def power_sums(weight, tilt, square, cube):
    """(NUM_LANES, 2, 2) sums in lanes of weights, and of them times powers of the tilt.

    One tensor, for the interpreter takes long over each operation.
    """
    terms = tl.join(tl.join(weight, weight * tilt), tl.join(weight * square, weight * cube))
    return tl.sum(tl.reshape(terms, [NUM_LANES, weight.shape[0] // NUM_LANES, 2, 2]), 1)
