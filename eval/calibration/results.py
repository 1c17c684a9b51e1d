"""Results of a calibration: calibration.json, a table and a picture."""

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ...durable_files import write_durably
from ...environment import environment_record
from ..copying.metrics import METRIC_SET
from ..figures.distributions import plot_calibration
from ..figures.style import drawn
from ..report import tables
from ..report.tables import Column
from ..statistics import json_value
from .calibration import TITLES, Calibrated, Calibration, Measured, Target

NAME = "calibration"


def write_results(
    calibration: Calibration, calibrated: Calibrated, *, symbol: str, about: dict[str, Any]
) -> str:
    """Write calibration.json, .md, .png and .svg; returns the text for the terminal.

    symbol: the unit of k, "token" or "byte". about: the caller's entries of the JSON.
    """
    folder = calibration.experiment.folder
    results = {
        "schema": "anchored-calibration/1",
        **about,
        "settings": _settings(calibration, symbol),
        "environment": environment_record(),
        "metric_set": METRIC_SET,
        **asdict(calibrated),
    }
    write_durably(folder / f"{NAME}.json", json.dumps(json_value(results), indent=1) + "\n")
    table = _rows(calibrated), _columns(calibration.target)
    said = "\n".join(verdict(calibration, calibrated, symbol=symbol))
    write_durably(folder / f"{NAME}.md", f"{tables.markdown_table(*table)}\n\n{said}\n")
    drawn(folder, {NAME: partial(_draw, calibration, calibrated, symbol)})
    return f"{tables.terminal_table(*table)}\n\n{said}"


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


def _columns(target: Target) -> list[Column]:
    return [
        tables.SETTING_COLUMN,
        Column("value", TITLES[target.metric]),
        Column("interval", f"{100 * target.confidence:g} % interval"),
        Column("longest_copy", "longest copy", num_decimals=2),
        Column("bound", num_decimals=1),
        tables.RECITED_COLUMN,
        Column("spent", num_decimals=1),
        Column("verdict", "target"),
    ]


def _rows(calibrated: Calibrated) -> list[dict[str, Any]]:
    safe, risky = calibrated.alone
    rows = [_row(row) for row in (safe, *calibrated.curve, risky)]
    if calibrated.check is not None:
        fresh = _row(calibrated.check)
        rows.append({**fresh, "setting": f"{fresh['setting']} (fresh seeds)"})
    return rows


def _row(measured: Measured) -> dict[str, Any]:
    value, low, high = measured.figure
    return {
        **asdict(measured),
        "value": value,
        "interval": f"{low:.3f} to {high:.3f}",
        "verdict": "met" if measured.is_met else "missed",
    }


def _settings(calibration: Calibration, symbol: str) -> dict[str, Any]:
    experiment = calibration.experiment
    return {
        "target": asdict(calibration.target),
        "search": asdict(calibration.search),
        "rule": calibration.rule_settings,
        "symbol": symbol,
        "num_prompts": len(experiment.prompts),
        "seeds": list(experiment.seeds),
        "check_seeds": calibration.check_seeds,
        "certify": calibration.certify,
        "max_new_tokens": experiment.max_new_tokens,
        "temperature": experiment.temperature,
        "repetition_penalty": experiment.repetition_penalty,
    }


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
