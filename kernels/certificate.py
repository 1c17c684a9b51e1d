"""Factors of the bounds that make every reported spend an upper bound, for all backends.

Each is derived in docs/certificate.md.
"""

SHORTFALL_FRACTION = 0.9e-5
SHORTFALL_NATS = 0.9e-7
"""The search stops within max(fraction * budget, nats) of a budget that binds, or within half."""

LEAST_BITS = -900.0
"""log2 of the least float64 sum of weights, the largest logit weighing 1, that is trusted: far
from underflow. Less needs logits beyond +-300 nats."""

WEIGHT_ROUNDINGS = 400.0
"""Units in the last place of one weight, on top of those of a sum: its exponent's, four of 100
nats. A tilt that makes an exponent larger than that is counted where it is known."""

KL_MARGIN = 8.0
"""KL may be wrong by so many relative errors of a weight, times what it passes them on by."""

FLOOR_MARGIN = 8.0
"""-log p_s(support) may be wrong by so many relative errors of a sum."""

ALLOWANCE_ROUNDINGS = 4.0
"""Units in the last place of the budget, kept back: the floor is subtracted from it and added again
to KL and margin, in four roundings of half a unit."""

MISSING_MASS = 1e-9
"""The search for the scale of a clipped p* stops with its mass within it of 1; scaling to 1 costs
that many nats."""

RESERVE_NATS = 2e-9
"""Kept back from the budget of a clipped distribution for that, and for rounding its spend up."""

MASS_RESERVE = 16.0
MASS_MARGIN = 8.0
"""Relative errors of a sum of weights that such a budget keeps back, and that the spend counts."""

OFFSET_RESERVE = 16.0
OFFSET_MARGIN = 8.0
"""The same in units in the last place of the offset and the tilts: a token's log-ratio takes seven
roundings of half a unit. A token that is charged for itself counts its safe weight's bits too: at
most four units of them are in its tilt."""
