"""How much a setting may copy, and what its generations did copy, with an interval over prompts."""

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from ..copying.metrics import METRICS, copying_scores, prompt_means
from ..copying.ncr import HIGH_PROTECTION, resampled_ncr
from ..experiments.experiment import Experiment, Setting
from ..experiments.generations import read_generations
from ..statistics import Array, bootstrap_interval, resampled_shares, unseen_share

# P prompts, M metrics of METRICS, R resamples of the prompts.

Copied = Array
"""(P, M): what the generations of one setting copied, means over seeds."""
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
    """What generations must meet: an NCR of at least, or a mean copy of at most, `value`."""

    metric: Metric = "ncr"
    value: float = HIGH_PROTECTION
    confidence: float = 0.95
    """Of the intervals."""
    is_strict: bool = True
    """The worse end of the interval has to meet it, not the mean alone. A k that is chosen by the
    mean misses its target on fresh seeds about every other time."""

    def __post_init__(self) -> None:
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

    def check_prompts(self, num_prompts: int) -> None:
        """Raise ValueError where so few prompts cannot meet the target, whatever they copy."""
        most = 1.0 - unseen_share(num_prompts, self.confidence)
        if self.is_strict and self.is_reduction and most < self.value:
            raise ValueError(
                f"{num_prompts} prompts show an NCR of at most {most:.3g} with a confidence of "
                f"{self.confidence:g}, the target is {self.value:g}: give more prompts, or "
                "--no-strict to go by the mean"
            )

    def is_met(self, figure: Figure) -> bool:
        """Whether the mean, or the worse end of its interval, meets the target; nan never does."""
        if self.is_reduction:
            return (figure.low if self.is_strict else figure.value) >= self.value
        return (figure.high if self.is_strict else figure.value) <= self.value

    def figure(self, setting: Copied, *, safe: Copied, risky: Copied) -> Figure:
        """The figure of a setting, beside both models' generations for the same prompts and seeds.

        Its interval is a bootstrap over prompts, whose seeds stay together; a resample in which the
        risky model copies no more than the safe one counts as the worst. Resamples repeat what was
        seen: the worse end also allows for the share of prompts that may be recited, as the risky
        model does on average, though none of these was.
        """
        num_prompts = len(setting)
        shares = resampled_shares(num_prompts, num_resamples=NUM_RESAMPLES)
        values = np.nan_to_num(self._values(shares, setting, safe, risky), nan=-math.inf)
        low, high = bootstrap_interval(values, count=num_prompts, confidence=self.confidence)
        equal_shares = np.full((1, num_prompts), 1.0 / num_prompts)
        value = float(self._values(equal_shares, setting, safe, risky)[0])
        unseen = unseen_share(num_prompts, self.confidence)
        if self.is_reduction:
            return Figure(value, min(low, 1.0 - unseen), high)
        recited = unseen * float(risky[:, METRICS.index(self.metric)].mean())
        return Figure(value, low, max(high, recited))

    def _values(self, shares: Array, *settings: Copied) -> Array:
        """(R,) for shares (R, P) of the prompts; nan where nothing has a gap to close.

        settings: the one that is judged, the safe and the risky model.
        """
        copied, safe, risky = settings
        if not self.is_reduction:
            return shares @ copied[:, METRICS.index(self.metric)]
        return resampled_ncr(shares, copied, safe=safe, risky=risky)


def copied_in(experiment: Experiment, setting: Setting) -> Copied:
    """What the setting's recorded generations copied, in the order of the prompts."""
    references = {prompt.id: prompt.reference for prompt in experiment.prompts}
    rows = read_generations(experiment, setting)
    scores = copying_scores([(row["text"], references[row["id"]]) for row in rows])
    own = [{"id": row["id"], **score.as_row()} for row, score in zip(rows, scores, strict=True)]
    return prompt_means(own, references)
