"""What a search for the weight of the risky model is asked, and what it answers, for one row."""

from typing import NamedTuple


class KlTarget(NamedTuple):
    """What a row may spend on the common support, and how near the search must come to it."""

    allowance: float
    """Nats; KL plus its margin must not exceed it."""
    tolerance: float
    """Nats; the search ends within it of the allowance."""
    log2_shared: float
    """log2 of the safe weight on the common support."""
    rounding: float
    """`LogitPair.rounding`."""
    tilt_range: float
    """Bits, `LogitPair.tilt_range`."""


class FeasiblePoint(NamedTuple):
    """The largest beta found feasible, measured in float64."""

    beta: float
    log2_partition: float
    """log2 of the sum of the weights p_s**(1 - beta) p_r**beta on the common support."""
    kl: float
    """Nats, from the safe model on the common support."""
    margin: float
    """Nats; the true KL is within it of `kl`."""
