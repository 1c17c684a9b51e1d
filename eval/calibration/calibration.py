"""The largest k whose generations keep to a target, by bisection on recorded generations."""

import logging
import math
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ... import ModelPair, RiskyOnly, SafeOnly
from ...decode.rules.anchored import Indebted
from ...decode.rules.registry import make_rule
from ..copying.literal import copying_rows
from ..copying.metrics import METRIC_SET, METRICS, prompt_means
from ..experiments.experiment import Experiment, Setting
from ..experiments.generations import (
    failed_generations,
    generate_all,
    read_all_prompts,
    read_generations,
)
from ..experiments.measures import copy_probabilities, generated_texts, reference_log_probs
from ..figures.distributions import plot_calibration
from ..figures.style import drawn
from ..recorded_texts import RISKY, SAFE, write_json
from ..report.tables import RECITED_COLUMN, columns_of, write_table
from ..statistics import largest_if_known, mean_if_known
from .certificates import certified_k
from .search import TITLES, Copied, Figure, Search, Target, bracket

FIRST_CHECK_SEED: Final = 1_000_000
"""The first seed of checks, by which nothing is chosen."""
FEW_PROMPTS: Final = 16
"""Simulated intervals of 95 % over 8 prompts held 92 % of means, over 16 and more 95 %."""
_SAFE, _RISKY = Setting(SAFE, SafeOnly()), Setting(RISKY, RiskyOnly())
_MEASURED: Final = "calibrated_ks"
"""Name of the rows of all k that were generated in a folder."""

logger = logging.getLogger(__name__)


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
        return {n: value for n, value in self.rule.settings().items() if n not in ("k", "K")}

    @property
    def check_seeds(self) -> list[int]:
        """Seeds by which nothing is chosen."""
        return [FIRST_CHECK_SEED + number for number in range(self.num_check_seeds)]

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
    """Generate missing texts and choose k; an interrupted call goes on when repeated. Raises
    ValueError if the prompts are too few, the risky model copies nothing, either model alone
    decides the matter, or the target is missed at the smallest k or met at the largest."""
    experiment, target = calibration.experiment, calibration.target
    if calibration.certify is not None:
        most = certified_k(experiment, pair, calibration.rule, calibration.certify)
        calibration = replace(calibration, search=calibration.search.up_to(most or 0.0))
    target.check_prompts(len(experiment.prompts))
    if len(experiment.prompts) < FEW_PROMPTS:
        logger.warning(
            "%d prompts are few: below %d, intervals hold the truth less often than they say",
            *(len(experiment.prompts), FEW_PROMPTS),
        )
    generations = _Generations(experiment, target, pair)
    alone = generations.measured(_SAFE), generations.measured(_RISKY)
    _check_alone(target, *alone)
    curve = _curve(calibration, generations)
    low, high = bracket({k: row.is_met for k, row in curve.items()})
    if low is None:
        shown = target.shown(curve[min(curve)].figure)
        raise ValueError(
            f"the target, {target}, is missed at the smallest k: {shown} at k={min(curve):g}; "
            "ask for less, or for a smaller --smallest-k"
        )
    if high is None and calibration.certify is None:
        raise ValueError(
            f"the target, {target}, is met at every k up to {low:g} "
            f"({target.shown(curve[low].figure)}): give a larger --largest-k"
        )
    by_k = [curve[k] for k in sorted(curve)]
    return Calibrated(k=low, alone=alone, curve=by_k, check=_check(calibration, low, pair))


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
    by_mean = replace(calibration.target, is_strict=False)
    return _Generations(fresh, by_mean, pair).measured(calibration.setting(k))


class _Generations:
    """The generations of an experiment, made on demand, and their figures."""

    def __init__(self, experiment: Experiment, target: Target, pair: ModelPair) -> None:
        self._experiment, self._target, self._pair = experiment, target, pair
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
        copied, target = self._copied(setting), self._target
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


def write_results(
    calibration: Calibration, calibrated: Calibrated, *, symbol: str, about: dict[str, Any]
) -> str:
    """Write calibration.json, .md, .png and .svg; returns the text for the terminal. symbol: the
    unit of k, "token" or "byte". about: the caller's entries of the JSON."""
    experiment, target = calibration.experiment, calibration.target
    same = ("max_new_tokens", "temperature", "repetition_penalty")
    settings = {
        "target": asdict(target),
        "search": asdict(calibration.search),
        "rule": calibration.rule_settings,
        "symbol": symbol,
        "num_prompts": len(experiment.prompts),
        "seeds": list(experiment.seeds),
        "check_seeds": calibration.check_seeds,
        "certify": calibration.certify,
        **{name: getattr(experiment, name) for name in same},
    }
    results = {"schema": "anchored-calibration/1", **about, "settings": settings}
    results |= {"metric_set": METRIC_SET, **asdict(calibrated)}
    write_json(experiment.folder / "calibration.json", results)
    safe, risky = calibrated.alone
    rows = [_row(measured) for measured in (safe, *calibrated.curve, risky)]
    if calibrated.check is not None:
        rows.append(_row(calibrated.check, " (fresh seeds)"))
    interval = ("interval", f"{100 * target.confidence:g} % interval")
    figures = (("value", TITLES[target.metric]), interval, ("longest_copy", "longest copy", 2))
    columns = [
        *columns_of("setting", *figures, ("bound", "", 1)),
        RECITED_COLUMN,
        *columns_of(("spent", "", 1), ("verdict", "target")),
    ]
    draw = partial(_draw, calibration, calibrated, symbol)
    drawn(experiment.folder, {"calibration": draw})
    notes = "\n".join(verdict(calibration, calibrated, symbol=symbol))
    return write_table(experiment.folder / "calibration.md", rows, columns, notes=notes)


def _row(measured: Measured, remark: str = "") -> dict[str, Any]:
    value, low, high = measured.figure
    return {
        **asdict(measured),
        "setting": measured.setting + remark,
        "value": value,
        "interval": f"{low:.3f} to {high:.3f}",
        "verdict": "met" if measured.is_met else "missed",
    }


def verdict(calibration: Calibration, calibrated: Calibrated, *, symbol: str) -> list[str]:
    """The chosen k with its figure, and the check of it, a line each."""
    target, chosen = calibration.target, calibrated.chosen
    by = "worse end of its interval" if target.is_strict else "mean"
    lines = [
        f"k = {calibrated.k:g} nats per {symbol}: {target.shown(chosen.figure)}; "
        f"the {by} meets the target, {target}."
    ]
    if calibration.certify is not None:
        lines.append(
            f"Its bound leaves each reference, from its first {symbol} on, a chance of at most "
            f"{calibration.certify:g}."
        )
    if calibrated.check is not None:
        met = "met" if calibrated.check.is_met else "MISSED"
        lines.append(
            f"On {calibration.num_check_seeds} fresh seeds: "
            f"{target.shown(calibrated.check.figure)}; the target is {met}."
        )
    return lines


def _draw(calibration: Calibration, calibrated: Calibrated, symbol: str, path: Path) -> None:
    target, experiment = calibration.target, calibration.experiment
    better = "larger" if target.is_reduction else "smaller"
    judged = "the worse end of the interval" if target.is_strict else "the mean"
    caption = (
        f"{len(experiment.prompts)} prompts, {len(experiment.seeds)} seeds, {better} is better; "
        f"bars: {100 * target.confidence:g} % intervals over prompts.\nThe chosen k is the largest "
        f"at which {judged} meets the target, as it does at all smaller ones."
    )
    plot_calibration(
        {row.k: row.figure for row in calibrated.curve if row.k is not None},
        path,
        chosen=calibrated.k,
        target=target.value,
        fresh=None if calibrated.check is None else calibrated.check.figure,
        figure_name=TITLES[target.metric],
        symbol=symbol,
        caption=caption,
    )
