"""How much a setting may copy, and what its generations did copy, with an interval over prompts."""

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..copying.metrics import METRICS, copying_scores, copying_summary
from ..copying.ncr import HIGH_PROTECTION, copying_reduction
from ..experiments.experiment import Experiment, Setting
from ..experiments.generations import read_generations
from ..statistics import bootstrap_interval, resampled_shares

# P prompts, S seeds, M metrics of METRICS, R resamples of the prompts.

Copied = NDArray[np.float64]
"""(P, S, M): what the generations of one setting copied."""
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
    """What generations must keep to: an NCR of at least, or a mean copy of at most, `value`."""

    metric: Metric = "ncr"
    value: float = HIGH_PROTECTION
    confidence: float = 0.95
    """Of the intervals."""
    is_strict: bool = False
    """The worse end of the interval has to keep to it, not the mean alone."""

    def __post_init__(self) -> None:
        if self.metric not in TITLES:
            raise ValueError(f"metric must be one of {', '.join(TITLES)}, got {self.metric!r}")
        largest = 1.0 if self.metric == "ncr" else math.inf
        if not 0.0 < self.value <= largest or math.isinf(self.value):
            allowed = "in (0, 1]" if self.metric == "ncr" else "finite and > 0"
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
        """Whether more is better."""
        return self.metric == "ncr"

    def is_met(self, figure: Figure) -> bool:
        """By the mean, or by the worse end of its interval; never by what is not defined."""
        if self.is_reduction:
            return (figure.low if self.is_strict else figure.value) >= self.value
        return (figure.high if self.is_strict else figure.value) <= self.value

    def figure(self, setting: Copied, *, safe: Copied, risky: Copied) -> Figure:
        """The figure of a setting, beside both models' generations for the same prompts and seeds.

        Its interval is a bootstrap over prompts, whose seeds stay together; a resample in which the
        risky model copies no more than the safe one counts as the worst.
        """
        num_prompts = len(setting)
        shares = resampled_shares(num_prompts, num_resamples=NUM_RESAMPLES)
        values = np.nan_to_num(self._values(shares, setting, safe, risky), nan=-math.inf)
        low, high = bootstrap_interval(values, count=num_prompts, confidence=self.confidence)
        return Figure(self.value_of(setting, safe=safe, risky=risky), low, high)

    def value_of(self, setting: Copied, *, safe: Copied, risky: Copied) -> float:
        """The figure without its interval, which is most of the work."""
        shares = np.full((1, len(setting)), 1.0 / len(setting))
        return float(self._values(shares, setting, safe, risky)[0])

    def is_met_by(self, setting: Copied, *, safe: Copied, risky: Copied) -> bool:
        """`is_met` of the figure of a setting."""
        if self.is_strict:
            return self.is_met(self.figure(setting, safe=safe, risky=risky))
        value = self.value_of(setting, safe=safe, risky=risky)
        return self.is_met(Figure(value, value, value))

    def _values(self, shares: Copied, *settings: Copied) -> Copied:
        """(R,) for shares (R, P) of the prompts; nan where nothing has a gap to close.

        settings: the one that is judged, the safe and the risky model.
        """
        means = [shares @ copied.mean(1) for copied in settings]
        if not self.is_reduction:
            return means[0][:, METRICS.index(self.metric)]
        named = ([dict(zip(METRICS, row.tolist(), strict=True)) for row in rows] for rows in means)
        return np.array(
            [copying_reduction(m, safe=s, risky=r).mean for m, s, r in zip(*named, strict=True)]
        )


def copied_in(experiment: Experiment, setting: Setting) -> Copied:
    """(P, S, M) of the setting's recorded generations, in the order of the prompts and seeds."""
    references = {prompt.id: prompt.reference for prompt in experiment.prompts}
    rows = read_generations(experiment, setting)
    scores = copying_scores(
        [(row["text"], references[row["work"]]) for row in rows], experiment.copying
    )
    by_key = {
        (row["work"], row["seed"]): copying_summary([score], experiment.copying)
        for row, score in zip(rows, scores, strict=True)
    }
    return np.array(
        [
            [[by_key[prompt.id, seed][name] for name in METRICS] for seed in experiment.seeds]
            for prompt in experiment.prompts
        ]
    )
