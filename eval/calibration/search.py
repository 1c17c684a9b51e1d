"""The target of a calibration, and the search for the largest k that meets it."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

import numpy as np

from ..copying.literal import HIGH_PROTECTION, resampled_ncr
from ..copying.metrics import METRICS
from ..statistics import Array, bootstrap_interval, resampled_shares, unseen_share

# P prompts, M metrics of METRICS, R resamples of the prompts.

Copied = Array
"""(P, M): copying of one setting's generations, means over seeds."""
Metric = Literal["ncr", "word_lcs", "char_lcs", "word_acs"]
TITLES: Final[dict[Metric, str]] = {
    "ncr": "NCR",
    "word_lcs": "longest copy, words",
    "char_lcs": "longest copy, characters",
    "word_acs": "copied words",
}
NUM_RESAMPLES: Final = 2000


class Figure(NamedTuple):
    """A mean over prompts and seeds, and the interval that the choice of prompts gives it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A limit for generations: an NCR of at least, or a mean copy of at most, `value`."""

    metric: Metric = "ncr"
    value: float = HIGH_PROTECTION
    confidence: float = 0.95
    """Confidence level of the intervals."""
    is_strict: bool = True
    """Whether the worse end of the interval has to meet it, not the mean alone. A k that is chosen
    by the mean misses its target on fresh seeds about every other time."""

    def __post_init__(self) -> None:
        largest = 1.0 if self.is_reduction else math.inf
        if not 0.0 < self.value <= largest or math.isinf(self.value):
            allowed = "in (0, 1]" if self.is_reduction else "finite and > 0"
            raise ValueError(f"a target for {self.metric} must be {allowed}, got {self.value}")
        if not 0.0 < self.confidence < 1.0:
            raise ValueError(f"confidence must be in (0, 1), got {self.confidence}")

    def __str__(self) -> str:
        return f"{TITLES[self.metric]} {'>=' if self.is_reduction else '<='} {self.value:g}"

    def shown(self, figure: Figure) -> str:
        """The figure with its interval."""
        value, low, high = (f"{number:.3g}" for number in figure)
        return f"{TITLES[self.metric]} {value} [{low}, {high}]"

    @property
    def is_reduction(self) -> bool:
        """Tell whether more is better."""
        return self.metric == "ncr"

    def check_prompts(self, num_prompts: int) -> None:
        """Raise ValueError if so few prompts cannot meet the target, whatever they copy."""
        most = 1.0 - unseen_share(num_prompts, self.confidence)
        if self.is_strict and self.is_reduction and most < self.value:
            raise ValueError(
                f"{num_prompts} prompts show an NCR of at most {most:.3g} with a confidence of "
                f"{self.confidence:g}, the target is {self.value:g}: give more prompts, or "
                "--no-strict to go by the mean"
            )

    def is_met(self, figure: Figure) -> bool:
        """Tell whether the mean, or the worse end of its interval, meets the target (nan: no)."""
        if self.is_reduction:
            return (figure.low if self.is_strict else figure.value) >= self.value
        return (figure.high if self.is_strict else figure.value) <= self.value

    def figure(self, setting: Copied, *, safe: Copied, risky: Copied) -> Figure:
        """The figure of a setting, with both models' copying for the same prompts and seeds. Its
        interval is a bootstrap over prompts; a resample in which the risky model copies no more
        than the safe one counts as the worst. Resamples only repeat prompts: the worse end also
        allows for the share of unseen prompts that may be recited as the risky model does."""
        index = 0 if self.is_reduction else METRICS.index(self.metric)

        def values(shares: Array) -> Array:
            """(R,) for shares (R, P) of the prompts; nan without a gap to close."""
            if self.is_reduction:
                return resampled_ncr(shares, setting, safe=safe, risky=risky)
            return shares @ setting[:, index]

        num_prompts = len(setting)
        value = float(values(np.full((1, num_prompts), 1.0 / num_prompts))[0])
        resampled = values(resampled_shares(num_prompts, num_resamples=NUM_RESAMPLES))
        resampled = np.nan_to_num(resampled, nan=-math.inf)
        low, high = bootstrap_interval(resampled, count=num_prompts, confidence=self.confidence)
        unseen = unseen_share(num_prompts, self.confidence)
        if self.is_reduction:
            return Figure(value, min(low, 1.0 - unseen), high)
        return Figure(value, low, max(high, unseen * float(risky[:, index].mean())))


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

    def next_k(self, is_met: Mapping[float, bool]) -> float | None:
        """The next k to measure, by which k meet the target; None once they are enough."""
        inner = np.geomspace(self.smallest, self.largest, self.num_first)[1:-1]
        first = [self.smallest, *map(_rounded, inner), self.largest]
        low, high = bracket(is_met)
        missing = [k for k in first if k not in is_met]
        if missing and (low is not None or not is_met):
            return missing[0]
        if low is None or high is None or high <= self.resolution * low:
            return None
        middle = _rounded(math.sqrt(low * high))
        return middle if low < middle < high else None


def bracket(is_met: Mapping[float, bool]) -> tuple[float | None, float | None]:
    """The largest k that meets the target with all smaller ones, and the next larger one. Copying
    need not grow with k from one measured k to the next: a k above one that misses the target is
    not taken, though it meets the target itself."""
    ks = sorted(is_met)
    low = list(itertools.takewhile(is_met.__getitem__, ks))
    return (low[-1] if low else None), (ks[len(low)] if len(low) < len(ks) else None)


def _rounded(k: float) -> float:
    """The k to three digits, which people can write down and which name a file."""
    return float(f"{k:.3g}")
