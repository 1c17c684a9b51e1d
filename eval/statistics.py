"""Mean and spread of one figure over seeds, and its interval over prompts."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from .. import durable_files

Array = NDArray[np.float64]


class SeedStatistics(TypedDict):
    """`mean` and sample standard deviation over `num_seeds` values; None for what is not defined.
    One form in memory, in JSON and in the cells of tables."""

    mean: float | None
    std: float | None
    num_seeds: int


def over_seeds(values: Sequence[float]) -> SeedStatistics:
    """Statistics of one value per seed; with a nan value the mean is not defined. Raises:
    ValueError if there are no values."""
    if not values:
        raise ValueError("statistics over seeds need at least one value, got none")
    mean = math.fsum(values) / len(values)
    is_finite = all(math.isfinite(value) for value in values)
    std = statistics.stdev(values) if is_finite and len(values) > 1 else math.nan
    return {
        "mean": None if math.isnan(mean) else mean,
        "std": None if math.isnan(std) else std,
        "num_seeds": len(values),
    }


def mean_of(figure: object) -> float:
    """A number, or statistics by their mean; nan for anything else."""
    mean = figure.get("mean") if isinstance(figure, Mapping) else figure
    return float(mean) if isinstance(mean, int | float) else math.nan


def std_of(figure: object) -> float:
    """The standard deviation of statistics; nan for anything else."""
    return mean_of(figure.get("std")) if isinstance(figure, Mapping) else math.nan


def mean_if_known(values: Iterable[float | None]) -> float | None:
    """The mean; None without values, and if one of them is None, which means infinity."""
    known = _if_known(values)
    return math.fsum(known) / len(known) if known else None


def largest_if_known(values: Iterable[float | None]) -> float | None:
    """The largest; None as of `mean_if_known`."""
    return max(_if_known(values), default=None)


def _if_known(values: Iterable[float | None]) -> list[float]:
    """The values; none of them where one is None."""
    listed = list(values)
    known = [value for value in listed if value is not None]
    return known if len(known) == len(listed) else []


def mean_of_largest(values: Sequence[float], count: int) -> float:
    """The largest of `count` of the values, drawn without replacement: its mean over all draws. Of
    zeros and ones it is the chance that one of `count` is a one. Raises: ValueError if there are
    not as many values. Source: Chen et al. 2021 (pass@k)."""
    if not 1 <= count <= len(values):
        raise ValueError(f"count must be in [1, {len(values)}], got {count}")
    # The value of rank i is the largest of as many draws as take the others from the i below it.
    draws = [value * math.comb(rank, count - 1) for rank, value in enumerate(sorted(values))]
    return math.fsum(draws) / math.comb(len(values), count)


def json_value(value: Any) -> Any:
    """Figures as JSON has them: NamedTuples by their names, None for infinite or undefined ones."""
    return durable_files.json_value(value, spelled=lambda number: None)


def resampled_shares(count: int, *, num_resamples: int, seed: int = 0) -> Array:
    """Shares of each of `count` units in samples of as many, drawn with replacement. Returns:
    (num_resamples, count), rows of sum 1; a mean over the units of a resample is its row times
    their values. The same for a seed, so that figures of several settings are of the same
    resamples. Source: Efron 1979."""
    generator = np.random.default_rng(seed)
    probs = np.full(count, 1.0 / count)
    return generator.multinomial(count, probs, size=num_resamples) / count


def bootstrap_interval(values: Array, *, count: int, confidence: float) -> tuple[float, float]:
    """The expanded percentile interval of a figure from its values in resamples of `count` units.
    values: (num_resamples,), infinite ones allowed. Plain percentiles are too narrow for few units:
    the expanded ones have the width of Student's t with count - 1 degrees of freedom, and of a
    variance over count - 1. (-inf, inf) of a single unit. Source: Hesterberg 2015."""
    if count < 2:
        return -math.inf, math.inf
    quantile = math.sqrt(count / (count - 1)) * student_quantile(confidence, count - 1)
    tail = statistics.NormalDist().cdf(-quantile)
    # Values between two resamples are none of a resample: the outer one is taken.
    low = np.quantile(values, tail, method="lower")
    return float(low), float(np.quantile(values, 1.0 - tail, method="higher"))


def unseen_share(count: int, confidence: float) -> float:
    """The largest share of all units that `count` of them can miss, at a level of confidence. None
    of them has a property that this share of all has with a probability of 1 - confidence. Close to
    3 / count at 0.95, the rule of three. Source: Hanley and Lippman-Hand 1983."""
    return float(1.0 - (1.0 - confidence) ** (1.0 / count))


def share_interval(
    mean: float, standard_error: float, *, count: int, confidence: float
) -> tuple[float, float]:
    """The score interval of a mean of `count` units in [0, 1], as of a share. Of zeros and ones it
    is Wilson's, which holds for rare events too: a share of 0.1 of 16 units is inside of 0.93 of
    those at 0.95. Units between count as so many zeros and ones as their standard error (of the
    mean, with a variance over count) implies. Source: Wilson 1927."""
    squared = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0) ** 2
    spread = mean * (1.0 - mean)
    number = spread / standard_error**2 if standard_error > 0.0 else count
    middle, scale = mean + squared / (2.0 * number), 1.0 + squared / number
    reach = math.sqrt(squared * (spread + squared / (4.0 * number)) / number)
    return max(0.0, (middle - reach) / scale), min(1.0, (middle + reach) / scale)


def ratio_standard_error(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The standard error of sum over sum, over units, with a variance over count."""
    ratio = math.fsum(numerators) / math.fsum(denominators)
    residuals = [n - ratio * d for n, d in zip(numerators, denominators, strict=True)]
    return math.sqrt(math.fsum(each**2 for each in residuals)) / math.fsum(denominators)


def student_quantile(confidence: float, freedom: int) -> float:
    """The t that Student's distribution exceeds, up or down, with probability 1 - confidence. With
    t = sqrt(freedom) tan(angle), the angle has the density cos(angle)^(freedom - 1)."""
    angles = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angles) ** (freedom - 1)
    below = np.append(0.0, np.cumsum(density[1:] + density[:-1]))
    angle = np.interp(confidence * below[-1], below, angles)
    return math.sqrt(freedom) * math.tan(angle)
