"""The largest k whose generations keep to a target, found by bisection on recorded generations."""

import itertools
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from ... import Anchored, ModelPair, RiskyOnly, SafeOnly
from ..copying.metrics import METRICS
from ..experiments.experiment import Experiment, Setting
from ..experiments.generations import (
    failed_generations,
    generate_all,
    read_all_prompts,
    read_generations,
)
from ..experiments.measures import reference_log_probs
from ..experiments.summary import copy_probabilities
from ..recorded_texts import RISKY, SAFE
from ..statistics import mean_if_known
from .target import Copied, Figure, Target, copied_in

FIRST_CHECK_SEED: Final = 1_000_000
"""Seeds from here on are those of checks: nothing is chosen by them."""
FEW_PROMPTS: Final = 16
"""Simulated intervals of 95 % over 8 prompts held 92 % of means, over 16 and more 95 %."""
_SAFE, _RISKY = Setting(SAFE, SafeOnly()), Setting(RISKY, RiskyOnly())
_MEASURED: Final = "calibrated_ks"
"""Rows of every k that was generated in a folder."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Search:
    """Which k are measured: a few over the whole range, then the middles of what is left of it."""

    smallest: float = 0.1
    """Nats a token, or a byte."""
    largest: float = 20.0
    num_first: int = 5
    """Equally far apart in log k, the smallest and the largest among them."""
    resolution: float = 1.1
    """The next larger k that was measured is at most so many times the result."""

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

    @property
    def first_ks(self) -> list[float]:
        """Ascending."""
        inner = np.geomspace(self.smallest, self.largest, self.num_first)[1:-1]
        return [self.smallest, *map(_rounded, inner), self.largest]

    def next_k(self, is_met: Mapping[float, bool]) -> float | None:
        """What to measure next, knowing which k meet the target; None where that is enough."""
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
    """Three digits: a k that people can write down, and that names a file."""
    return float(f"{k:.3g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What is asked: a target, and the generations that it is measured on."""

    experiment: Experiment
    """Prompts, seeds, lengths and the folder; its settings follow from the search."""
    rule: Anchored
    """The k of it is replaced."""
    target: Target = field(default_factory=Target)
    search: Search = field(default_factory=Search)
    num_check_seeds: int = 4
    """Seeds that are generated when k is chosen, to see what the choice by itself has added."""

    @property
    def rule_settings(self) -> dict[str, Any]:
        """Of the rule, but for the budget that is searched."""
        own = self.rule.settings()
        return {name: value for name, value in own.items() if name not in ("k", "K")}

    @property
    def check_seeds(self) -> list[int]:
        """Seeds that nothing is chosen by."""
        return list(range(FIRST_CHECK_SEED, FIRST_CHECK_SEED + self.num_check_seeds))

    def setting(self, k: float) -> Setting:
        """Anchored Decoding at this k."""
        return Setting(f"k={k:g}", replace(self.rule, k=k), k)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What one setting copied and spent."""

    setting: str
    k: float | None
    figure: Figure
    is_met: bool
    longest_copy: float
    """Mean words of the longest copied span."""
    bound: float | None
    """Mean nats; None for the risky model, and for greedy decoding."""
    recited: float | None
    """What the bounds allow: the mean, over texts, of the largest probability that a text is its
    reference from its first token to its last (`event_bound`); None as `bound` is."""
    spent: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """The answer, and all that was measured for it."""

    k: float
    alone: tuple[Measured, Measured]
    """The safe and the risky model."""
    curve: list[Measured]
    """Every measured k, ascending."""
    check: Measured | None
    """The chosen k on seeds that it was not chosen by."""

    @property
    def chosen(self) -> Measured:
        """The row of `k`."""
        return next(row for row in self.curve if row.k == self.k)


def calibrate(calibration: Calibration, pair: ModelPair) -> Calibrated:
    """Generate what is not recorded yet, and choose k; an interrupted call goes on when repeated.

    Raises ValueError where the prompts are too few, the risky model copies nothing, either model
    alone decides the matter, or the target is missed at the smallest k or met at the largest.
    """
    num_prompts = len(calibration.experiment.prompts)
    calibration.target.check_prompts(num_prompts)
    if num_prompts < FEW_PROMPTS:
        logger.warning(
            "%d prompts are few: below %d, intervals hold the truth less often than they say",
            *(num_prompts, FEW_PROMPTS),
        )
    generations = _Generations(calibration, calibration.experiment, pair)
    alone = generations.measured(_SAFE), generations.measured(_RISKY)
    _check_alone(calibration.target, *alone)
    curve = _curve(calibration, generations)
    low, high = bracket({k: row.is_met for k, row in curve.items()})
    target = calibration.target
    if low is None:
        least = min(curve)
        shown = target.shown(curve[least].figure)
        raise ValueError(
            f"the target, {target}, is missed at the smallest k: {shown} at k={least:g}; "
            "ask for less, or for a smaller --smallest-k"
        )
    if high is None:
        raise ValueError(
            f"the target, {target}, is met at every k up to {low:g} "
            f"({target.shown(curve[low].figure)}): give a larger --largest-k"
        )
    return Calibrated(
        k=low,
        alone=alone,
        curve=[curve[k] for k in sorted(curve)],
        check=_check(calibration, low, pair),
    )


def _check_alone(target: Target, safe: Measured, risky: Measured) -> None:
    if math.isnan(risky.figure.value):
        raise ValueError(
            "the risky model copies no more of these references than the safe one: there is no "
            "copying to reduce, and no k to choose"
        )
    if target.is_met(risky.figure):
        raise ValueError(
            f"the risky model alone meets the target, {target}: {target.shown(risky.figure)}; "
            "these prompts ask for no budget"
        )
    if target.is_strict and math.isinf(safe.figure.low):
        raise ValueError(
            "the risky model copies so few of these references that nothing can be said of others: "
            "give more prompts, or --no-strict to go by the mean"
        )
    if not target.is_met(safe.figure):
        raise ValueError(
            f"the safe model alone misses the target, {target}: {target.shown(safe.figure)}"
        )


def _curve(calibration: Calibration, generations: "_Generations") -> dict[float, Measured]:
    """Every k that this search needs, and what earlier searches in the folder have recorded."""
    experiment, search = calibration.experiment, calibration.search
    curve: dict[float, Measured] = {}
    recorded = {row["k"] for row in experiment.read_rows(_MEASURED)}
    waiting = [k for k in sorted(recorded) if k <= search.largest]
    while True:
        is_met = {k: row.is_met for k, row in curve.items()}
        k = waiting.pop(0) if waiting else search.next_k(is_met)
        if k is None:
            return curve
        row = curve[k] = generations.measured(calibration.setting(k))
        recorded.add(k)
        experiment.write_rows(_MEASURED, [{"k": each} for each in sorted(recorded)])
        verdict = "met" if row.is_met else "missed"
        logger.info("%s: %s, %s", row.setting, calibration.target.shown(row.figure), verdict)


def _check(calibration: Calibration, k: float, pair: ModelPair) -> Measured | None:
    """The chosen k and both models alone on fresh seeds, judged by the mean: strictness is a margin
    for the choice, which this measurement does not make."""
    if not (seeds := calibration.check_seeds):
        return None
    folder = calibration.experiment.folder / "check" / f"{len(seeds)}-seeds"
    fresh = replace(calibration.experiment, folder=folder, seeds=seeds)
    by_mean = replace(calibration, target=replace(calibration.target, is_strict=False))
    return _Generations(by_mean, fresh, pair).measured(calibration.setting(k))


class _Generations:
    """The generations of an experiment, made where they are asked for, and their figures."""

    def __init__(self, calibration: Calibration, experiment: Experiment, pair: ModelPair) -> None:
        self._calibration, self._experiment, self._pair = calibration, experiment, pair
        read_all_prompts(experiment, pair)
        self._log_probs = reference_log_probs(experiment, pair)
        self._alone = {"safe": self._copied(_SAFE), "risky": self._copied(_RISKY)}

    def _copied(self, setting: Setting) -> Copied:
        one = replace(self._experiment, settings=(setting,))
        generate_all(one, self._pair)
        if failed := failed_generations(one, setting):
            raise ValueError(f"{setting.name}, {failed[0]['id']}: {failed[0]['error']}")
        return copied_in(one, setting)

    def measured(self, setting: Setting) -> Measured:
        copied, target = self._copied(setting), self._calibration.target
        figure = target.figure(copied, **self._alone)
        rows = read_generations(self._experiment, setting)
        is_bounded = setting.name != RISKY and self._experiment.temperature > 0.0
        unknown = [row["id"] for row in rows if row["id"] not in self._log_probs]
        if is_bounded and unknown:
            raise ValueError(f"{unknown[0]}: its reference has no probability under p_s")
        recited = copy_probabilities(rows, self._log_probs, setting.rule)
        return Measured(
            setting=setting.name,
            k=setting.k,
            figure=figure,
            is_met=target.is_met(figure),
            longest_copy=float(copied[:, METRICS.index("word_lcs")].mean()),
            bound=mean_if_known(row["bound"] for row in rows) if is_bounded else None,
            recited=mean_if_known(recited) if is_bounded else None,
            spent=mean_if_known(row["spent"] for row in rows),
        )
