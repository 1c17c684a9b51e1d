"""Settings of a run as points of protection and utility, as pictures show them."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..copying.metrics import METRICS
from ..figures.style import Role
from ..figures.trade_off import Scale, TradeOffPoint, plot_trade_off
from ..recorded_texts import RISKY, SAFE
from ..report.tables import Cell
from .recorded_run import RecordedRun

Figures = Mapping[str, Cell]
"""A figure by setting."""


def figure_of(cell: Cell) -> float:
    """A number, statistics by their mean; nan for anything else."""
    mean = getattr(cell, "mean", cell)
    return float(mean) if isinstance(mean, int | float) else math.nan


def trade_off(
    run: RecordedRun,
    *,
    protection: tuple[Scale, Figures],
    utility: tuple[Scale, Figures],
    title: str,
) -> Callable[[Path], None] | None:
    """The picture of two figures of the run's methods; None where no setting has both."""
    points = trade_off_points(run, protection[1], utility[1])
    if not any(math.isfinite(p.protection) and math.isfinite(p.utility) for p in points):
        return None
    cells = [*protection[1].values(), *utility[1].values()]
    return partial(
        plot_trade_off,
        {"": points},
        title=title,
        protection=protection[0],
        utility=utility[0],
        num_seeds=max(int(getattr(cell, "num_seeds", 1)) for cell in cells),
    )


def trade_off_points(
    run: RecordedRun, protection: Figures, utility: Figures, *, figure: str = "methods"
) -> list[TradeOffPoint]:
    """Points of the methods of one figure of a sweep, and of those that sweep k, in rows' order.

    All that such a figure shows is held against the swept method. [] where nothing is. A run that
    names no methods, as a quickstart, has its budgets as settings of one.
    """
    about = run.results.get("methods")
    if about is None:
        shown = [_point(run, row, protection, utility) for row in run.rows]
        return shown if figure == "methods" else []
    names = {name for name, each in about.items() if figure in each.get("figures", ["methods"])}
    if not names - {SAFE, RISKY}:
        return []
    names |= {name for name, each in about.items() if each["is_swept"] and figure != "methods"}
    return [_point(run, row, protection, utility) for row in run.rows if row["method"] in names]


def _point(
    run: RecordedRun, row: Mapping[str, Any], protection: Figures, utility: Figures
) -> TradeOffPoint:
    name, role = row["setting"], _role(run, row)
    method = str(row.get("method") or ("Anchored" if role == "anchored" else name))
    x, y = protection.get(name), utility.get(name)
    return TradeOffPoint(
        label="" if role in ("safe", "risky") else name.removeprefix(method).lstrip(", "),
        role=role,
        method=method,
        protection=figure_of(x),
        utility=figure_of(y),
        num_metrics=getattr(x, "num_metrics", len(METRICS)),
        protection_std=float(getattr(x, "std", math.nan)),
        utility_std=float(getattr(y, "std", math.nan)),
    )


def _role(run: RecordedRun, row: Mapping[str, Any]) -> Role:
    if row["setting"] in (SAFE, RISKY):
        return "safe" if row["setting"] == SAFE else "risky"
    about = run.results.get("methods")
    is_ours = row.get("k") is not None if about is None else about[row["method"]]["is_swept"]
    return "anchored" if is_ours else "baseline"
