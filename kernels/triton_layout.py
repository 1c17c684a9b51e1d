"""Where the Triton kernels keep what they know: columns of the scratch and output tensors.

Peaks are in nats unless they say bits. Every program of a request may write any fact of it, for all
compute the same bits; so a fact must not change once written, while slower programs may read it.
"""

import triton.language as tl

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
SAFE_MASS = tl.constexpr(22)
TILT_RANGE = tl.constexpr(23)  # infinite: not measured
NUM_FACTS = tl.constexpr(24)

# Flags of a row, one byte each.
IS_VALID = tl.constexpr(0)
IS_SAFE_ONLY = tl.constexpr(1)
ACCEPTED = tl.constexpr(2)
WAS_REACHED = tl.constexpr(3)
NUM_FLAGS = tl.constexpr(4)

# Records of a block, float64, each a vector over the blocks of the row.
NUM_ESTIMATES = tl.constexpr(8)
NUM_POINTS = tl.constexpr(2)
SAFE_MAX = tl.constexpr(0)
RISKY_MAX = tl.constexpr(1)
IS_BAD = tl.constexpr(2)
SHARED_MASS = tl.constexpr(3)
BANNED_MASS = tl.constexpr(4)
RESIDUAL_MASS = tl.constexpr(5)
FIRST_SUM = tl.constexpr(6)  # 2 steps in turn x NUM_POINTS x 3 sums
ESTIMATE_PEAK = tl.constexpr(18)  # NUM_ESTIMATES each, from here on
ESTIMATE_SUM = tl.constexpr(26)  # 3 sums
RISKY_MASS = tl.constexpr(18)  # order infinity has extremes in place of estimates
TILT_MAX = tl.constexpr(19)
TILT_MIN = tl.constexpr(20)
RISKY_MIN = tl.constexpr(50)  # of the finite logits, masks by a finite number among them
SAFE_MIN = tl.constexpr(51)
NUM_RECORDS = tl.constexpr(52)

# The account of a request, float64: its budget and what it has spent.
PER_STEP = tl.constexpr(0)
TOTAL = tl.constexpr(1)
DEBT = tl.constexpr(2)
SCHEDULE = tl.constexpr(3)
STEP = tl.constexpr(4)
SPENT = tl.constexpr(5)
NUM_ACCOUNT_FIELDS = tl.constexpr(6)

ADAPTIVE = tl.constexpr(0)
GLOBAL = tl.constexpr(1)
FIXED = tl.constexpr(2)
