"""Mean and spread of one figure over seeds."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class SeedStatistics(NamedTuple):
    """`mean` and `std` (sample standard deviation, nan for one seed) over `num_seeds` values."""

    mean: float
    std: float
    num_seeds: int


def over_seeds(values: Sequence[float]) -> SeedStatistics:
    """Statistics of one value per seed; a nan value makes the mean nan.

    Raises: ValueError if there are no values.
    """
    if not values:
        raise ValueError("statistics over seeds need at least one value, got none")
    mean = math.fsum(values) / len(values)
    is_finite = all(math.isfinite(value) for value in values)
    std = statistics.stdev(values) if is_finite and len(values) > 1 else math.nan
    return SeedStatistics(mean, std, len(values))
