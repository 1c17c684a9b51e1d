"""The largest k whose generations keep to a target, by bisection on recorded generations."""

import logging
import math
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from ... import ModelPair, RiskyOnly, SafeOnly
from ...decode.rules.anchored import Indebted
from ...decode.rules.registry import make_rule
from ..copying.literal import copying_rows
from ..copying.metrics import METRICS, prompt_means
from ..copying.ncr import HIGH_PROTECTION, resampled_ncr
from ..experiments.experiment import Experiment, Setting
from ..experiments.generations import (
    failed_generations,
    generate_all,
    read_all_prompts,
    read_generations,
)
from ..experiments.measures import generated_texts, reference_log_probs
from ..experiments.summary import copy_probabilities
from ..recorded_texts import RISKY, SAFE
from ..statistics import (
    Array,
    bootstrap_interval,
    largest_if_known,
    mean_if_known,
    resampled_shares,
    unseen_share,
)
from .certificates import certified_k
from .search import Search, bracket

FIRST_CHECK_SEED: Final = 1_000_000
"""The first seed of checks, by which nothing is chosen."""
FEW_PROMPTS: Final = 16
"""Simulated intervals of 95 % over 8 prompts held 92 % of means, over 16 and more 95 %."""
_SAFE, _RISKY = Setting(SAFE, SafeOnly()), Setting(RISKY, RiskyOnly())
_MEASURED: Final = "calibrated_ks"
"""Name of the rows of all k that were generated in a folder."""

logger = logging.getLogger(__name__)

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
        """Raise ValueError if so few prompts cannot meet the target, whatever they copy."""
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
        """The figure of a setting, with both models' copying for the same prompts and seeds.

        Its interval is a bootstrap over prompts, whose seeds stay together; a resample in which the
        risky model copies no more than the safe one counts as the worst. Resamples only repeat
        prompts: the worse end also allows for the share of unseen prompts that may be recited, as
        the risky model does on average.
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
        """(R,) for shares (R, P) of the prompts; nan without a gap to close.

        settings: the judged one, the safe and the risky model.
        """
        copied, safe, risky = settings
        if not self.is_reduction:
            return shares @ copied[:, METRICS.index(self.metric)]
        return resampled_ncr(shares, copied, safe=safe, risky=risky)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A target, and the generations on which it is measured."""

    experiment: Experiment
    """Prompts, seeds, lengths and the folder; its settings follow from the search."""
    rule: Indebted
    """The rule, whose k is replaced."""
    target: Target = field(default_factory=Target)
    search: Search = field(default_factory=Search)
    num_check_seeds: int = 4
    """Number of seeds that are generated once k is chosen, to see the bias of the choice."""
    certify: float | None = None
    """The largest chance that the bound of a k may leave to reciting any of the references; k above
    are not tried."""

    @property
    def rule_settings(self) -> dict[str, Any]:
        """Settings of the rule, apart from the searched budget."""
        settings = self.rule.settings()
        return {name: value for name, value in settings.items() if name not in ("k", "K")}

    @property
    def check_seeds(self) -> list[int]:
        """Seeds by which nothing is chosen."""
        return list(range(FIRST_CHECK_SEED, FIRST_CHECK_SEED + self.num_check_seeds))

    def setting(self, k: float) -> Setting:
        """The rule at this k."""
        return Setting(f"k={k:g}", make_rule(self.rule.name, self.rule.settings() | {"k": k}), k)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Copying and spends of one setting."""

    setting: str
    k: float | None
    figure: Figure
    is_met: bool
    longest_copy: float
    """Mean words of the longest copied span."""
    bound: float | None
    """Mean nats; None for the risky model, and for greedy decoding."""
    recited: float | None
    """The largest probability that the bounds leave to any text that is its reference from its
    first token to its last (`event_bound`), that of the worst text; None as `bound` is."""
    spent: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibrated:
    """The chosen k, and all that was measured for it."""

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
    """Generate missing texts and choose k; an interrupted call goes on when repeated.

    Raises ValueError if the prompts are too few, the risky model copies nothing, either model
    alone decides the matter, or the target is missed at the smallest k or met at the largest.
    """
    if calibration.certify is not None:
        most = certified_k(calibration.experiment, pair, calibration.rule, calibration.certify)
        calibration = replace(calibration, search=calibration.search.up_to(most or 0.0))
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
    if high is None and calibration.certify is None:
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
    """Every k that this search needs, and those of earlier searches in the folder."""
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
    for a choice."""
    if not (seeds := calibration.check_seeds):
        return None
    folder = calibration.experiment.folder / "check" / f"{len(seeds)}-seeds"
    fresh = replace(calibration.experiment, folder=folder, seeds=seeds)
    by_mean = replace(calibration, target=replace(calibration.target, is_strict=False))
    return _Generations(by_mean, fresh, pair).measured(calibration.setting(k))


class _Generations:
    """The generations of an experiment, made on demand, and their figures."""

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
        return copied_in(one)

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
            recited=largest_if_known(recited) if is_bounded else None,
            spent=mean_if_known(row["spent"] for row in rows),
        )


def copied_in(experiment: Experiment) -> Copied:
    """Copying of the experiment's recorded generations, in the order of the prompts."""
    rows = copying_rows(generated_texts(experiment))
    return prompt_means(rows, [prompt.id for prompt in experiment.prompts])
