"""Where the Triton kernels keep what they know, and how they read a block of tokens.

Peaks are in nats unless they say bits. Every program of a request may write any fact of it, for all
compute the same bits; so a fact must not change once written, while slower programs may read it.
"""

import math
from typing import Any, NamedTuple

import triton
import triton.language as tl

from .. import accounts, spend


class Row(NamedTuple):
    """Where one row lies, in kernels: pointers, strides in numbers, and sizes."""

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
    split: Any
    """Which of the programs that share the row this one is."""
    num_splits: Any
    vocab_size: Any
    num_blocks: Any


# Facts of a row, float64: what the whole row shares. The first ones are the results.
WEIGHT = tl.constexpr(0)
SPEND = tl.constexpr(1)
BUDGET = tl.constexpr(2)
LOG_PROB = tl.constexpr(3)
SAFE_LOG_PROB = tl.constexpr(4)
SAFE_PEAK = tl.constexpr(5)
RISKY_PEAK = tl.constexpr(6)
LOG2_SAFE_MASS = tl.constexpr(7)
SLOPE = tl.constexpr(8)
OFFSET = tl.constexpr(9)
CEILING = tl.constexpr(10)
NUM_STEPS = tl.constexpr(11)  # the one fact that changes; programs in one launch never read it
LOG2_SHARED = tl.constexpr(12)
FLOOR = tl.constexpr(13)
IS_OPEN = tl.constexpr(14)
IS_UNTILTED = tl.constexpr(15)
LOG2_RISKY = tl.constexpr(16)
LARGEST_TILT = tl.constexpr(17)
SMALLEST_TILT = tl.constexpr(18)
DRAFT = tl.constexpr(19)
IS_KEPT = tl.constexpr(20)
ROW_STEP = tl.constexpr(21)
NUM_FACTS = tl.constexpr(22)

# Flags of a row, one byte each.
IS_VALID = tl.constexpr(0)
IS_SAFE_ONLY = tl.constexpr(1)
ACCEPTED = tl.constexpr(2)
WAS_REACHED = tl.constexpr(3)
NUM_FLAGS = tl.constexpr(4)

# Records of a block, float64, each a vector over the blocks of the row.
NUM_ESTIMATES = tl.constexpr(8)
NUM_POINTS = tl.constexpr(2)
NUM_SUMS = tl.constexpr(3)  # of weights, and of weights times the tilt and its square
SAFE_MAX = tl.constexpr(0)
RISKY_MAX = tl.constexpr(1)
SAFE_MIN = tl.constexpr(2)  # of the finite logits, masks by a finite number among them
RISKY_MIN = tl.constexpr(3)
IS_BAD = tl.constexpr(4)
SHARED_MASS = tl.constexpr(5)
BANNED_MASS = tl.constexpr(6)
RESIDUAL_MASS = tl.constexpr(7)
STEP_SUMS = tl.constexpr(8)  # of two steps in turn, NUM_POINTS each
ESTIMATE_PEAK = tl.constexpr(8 + 2 * NUM_SUMS.value * NUM_POINTS.value)  # NUM_ESTIMATES each
ESTIMATE_SUM = tl.constexpr(ESTIMATE_PEAK.value + NUM_ESTIMATES.value)
NUM_RECORDS = tl.constexpr(ESTIMATE_SUM.value + NUM_SUMS.value * NUM_ESTIMATES.value)
RISKY_MASS = tl.constexpr(ESTIMATE_PEAK.value)  # order infinity has extremes in place of estimates
TILT_MAX = tl.constexpr(ESTIMATE_PEAK.value + 1)
TILT_MIN = tl.constexpr(ESTIMATE_PEAK.value + 2)

# The account of a request.
PER_STEP = tl.constexpr(accounts.PER_STEP)
TOTAL = tl.constexpr(accounts.TOTAL)
DEBT = tl.constexpr(accounts.DEBT)
SCHEDULE = tl.constexpr(accounts.SCHEDULE)
STEP = tl.constexpr(accounts.STEP)
SPENT = tl.constexpr(accounts.SPENT)
NUM_ACCOUNT_FIELDS = tl.constexpr(accounts.NUM_FIELDS)
ADAPTIVE = tl.constexpr(accounts.SCHEDULES["adaptive"])
FIXED = tl.constexpr(accounts.SCHEDULES["fixed"])


LOG2_E = tl.constexpr(spend.BITS_PER_NAT)
LN_2 = tl.constexpr(math.log(2.0))
INF = tl.constexpr(float("inf"))
BAN_GAP = tl.constexpr(spend.BAN_GAP)
EPSILON = tl.constexpr(spend.EPSILON)


@triton.jit
def read_logits(row_ptr, column_stride, block, vocab_size, BLOCK_SIZE: tl.constexpr):
    """(BLOCK_SIZE,) float64 logits of one block of one row; -inf in the padding."""
    tokens = block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
    pointers = row_ptr + tokens.to(tl.int64) * column_stride
    return tl.load(pointers, mask=tokens < vocab_size, other=-INF).to(tl.float64)


@triton.jit
def without_masks(above_peak):
    """Logits less the largest of their row, -inf for those that count as banned."""
    return tl.where(above_peak < -BAN_GAP, -INF, above_peak)


@triton.jit
def safe_bits(row, block, BLOCK_SIZE: tl.constexpr):
    """(BLOCK_SIZE,) float64 log2-weights, 0 for the largest logit of the row; -inf where banned."""
    logits = read_logits(row.safe, row.safe_stride, block, row.vocab_size, BLOCK_SIZE)
    return without_masks(logits - tl.load(row.facts + SAFE_PEAK)) * LOG2_E


@triton.jit
def risky_bits(row, block, BLOCK_SIZE: tl.constexpr):
    """The same of the risky model."""
    logits = read_logits(row.risky, row.risky_stride, block, row.vocab_size, BLOCK_SIZE)
    return without_masks(logits - tl.load(row.facts + RISKY_PEAK)) * LOG2_E


@triton.jit
def shared_bits(safe_bits, risky_bits):
    """The common support, and the tilt between the models in bits, 0 off the support."""
    is_shared = (safe_bits > -INF) & (risky_bits > -INF)
    return is_shared, tl.where(is_shared, risky_bits, 0.0) - tl.where(is_shared, safe_bits, 0.0)


@triton.jit
def store_record(row, column, block, values):
    """A record of a block, or several: column may be a vector, as long as values."""
    tl.store(row.records + column * row.num_blocks + block, values)


@triton.jit
def load_record(row, column, other, NUM_SLOTS: tl.constexpr):
    """(NUM_SLOTS,) a record of every block, past the first-level cache: others wrote them."""
    blocks = tl.arange(0, NUM_SLOTS)
    pointers = row.records + column * row.num_blocks + blocks
    return tl.load(pointers, mask=blocks < row.num_blocks, other=other, cache_modifier=".cg")


@triton.jit
def load_records(row, columns, other, NUM_SLOTS: tl.constexpr):
    """(NUM_SLOTS, number of columns), the same of several."""
    blocks = tl.arange(0, NUM_SLOTS)[:, None]
    pointers = row.records + columns[None, :] * row.num_blocks + blocks
    return tl.load(pointers, mask=blocks < row.num_blocks, other=other, cache_modifier=".cg")


@triton.jit
def request_barrier(counter_ptr, num_splits):
    """Wait until all programs of the request have come here.

    counter_ptr: int64, counts arrivals for ever (2**63 are out of reach), so that replaying a CUDA
    graph needs no reset. The launch must be cooperative: every program must be resident.
    """
    tl.debug_barrier()  # all threads' stores precede the arrival of the program
    if num_splits > 1:
        arrived = tl.atomic_add(counter_ptr, 1, sem="acq_rel")
        target = (arrived // num_splits + 1) * num_splits
        while tl.atomic_add(counter_ptr, 0, sem="acquire") < target:
            pass
        tl.debug_barrier()  # no thread goes on before the one that waited
