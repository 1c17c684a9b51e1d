"""The search for the largest k that meets a target: which k is measured next."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """The measured k: a few over the whole range, then the middle of the remaining range."""

    smallest: float = 0.1
    """Nats per token or byte."""
    largest: float = 20.0
    num_first: int = 5
    """Number of first k, evenly spaced in log k, with the smallest and the largest."""
    resolution: float = 1.1
    """Largest ratio of the next larger measured k to the result."""

    def __post_init__(self) -> None:
        if not 0.0 < self.smallest < self.largest < math.inf:
            raise ValueError(
                f"k must be searched between 0 < smallest < largest, got {self.smallest:g} and "
                f"{self.largest:g}"
            )
        if self.num_first < 2:
            raise ValueError(f"num_first must be >= 2, got {self.num_first}")
        if not 1.01 <= self.resolution < math.inf:
            raise ValueError(f"resolution must be >= 1.01, got {self.resolution}")

    def up_to(self, k: float) -> "Search":
        """The same below a k; ValueError where nothing is."""
        if k <= self.smallest:
            raise ValueError(f"k={self.smallest:g} is not certified, but up to k={k:g}: take less")
        return replace(self, largest=min(self.largest, k))

    @property
    def first_ks(self) -> list[float]:
        """The first k, ascending."""
        inner = np.geomspace(self.smallest, self.largest, self.num_first)[1:-1]
        return [self.smallest, *map(_rounded, inner), self.largest]

    def next_k(self, is_met: Mapping[float, bool]) -> float | None:
        """The next k to measure, by which k meet the target; None once they are enough."""
        first = [k for k in self.first_ks if k not in is_met]
        low, high = bracket(is_met)
        if first and (low is not None or not is_met):
            return first[0]
        if low is None or high is None or high <= self.resolution * low:
            return None
        middle = _rounded(math.sqrt(low * high))
        return middle if low < middle < high else None


def bracket(is_met: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The largest k that meets the target with all smaller ones, and the next larger one.

    Copying need not grow with k from one measured k to the next: a k above one that misses the
    target is not taken, though it meets the target itself.
    """
    ks = sorted(is_met)
    low = list(itertools.takewhile(is_met.__getitem__, ks))
    return (low[-1] if low else None), (ks[len(low)] if len(low) < len(ks) else None)


def _rounded(k: float) -> float:
    """The k to three digits, which people can write down and which name a file."""
    return float(f"{k:.3g}")
