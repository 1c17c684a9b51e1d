"""Sums of probabilities given as logarithms."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def log_sum(values: Array) -> float:
    """log of the sum of exp(values), -inf for none; values: (n,) float64, -inf allowed."""
    top = float(values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(float(np.exp(values - top).sum()))


def log_sum_of(values: Sequence[float]) -> float:
    """`log_sum` of a few numbers, without the cost of an array."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return sum(values) if values else top  # NaN may hide behind -inf
    return top + math.log(sum(math.exp(value - top) for value in values))


def segment_log_sums(values: Array, starts: NDArray[np.int64]) -> Array:
    """`log_sum` of consecutive segments.

    values: (n,) float64. starts: (k,) ascending, the first 0, all below n. Returns: (k,) float64.
    """
    top = np.maximum.reduceat(values, starts)
    shift = np.where(top == -math.inf, 0.0, top)
    lengths = np.diff(starts, append=len(values))
    sums = np.add.reduceat(np.exp(values - np.repeat(shift, lengths)), starts)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + shift
    return logs
