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
from ..statistics import mean_of
from .recorded_run import RecordedRun
from .resamples import Resampled

Figures = Mapping[str, Cell]
"""A figure by setting."""
Resamples = tuple[Resampled, Resampled]
"""Protection and utility by setting, in the same resamples."""


def trade_off(
    run: RecordedRun,
    *,
    protection: tuple[Scale, Figures],
    utility: tuple[Scale, Figures],
    title: str,
    resampled: Resamples | None = None,
) -> Callable[[Path], None] | None:
    """The picture of two figures of the run's methods; None where no setting has both."""
    points = trade_off_points(run, protection[1], utility[1], resampled=resampled)
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
    run: RecordedRun,
    protection: Figures,
    utility: Figures,
    *,
    figure: str = "methods",
    resampled: Resamples | None = None,
) -> list[TradeOffPoint]:
    """Points of the methods of one figure of a sweep, and of those that sweep k, in rows' order.

    All that such a figure shows is held against the swept method. [] where nothing is. A run that
    names no methods, as a quickstart, has its budgets as settings of one. resampled: both figures
    in resamples, for how often a setting is on the front.
    """
    point = partial(_point, run, protection, utility, resampled or ({}, {}))
    about = run.results.get("methods")
    if about is None:
        return [point(row) for row in run.rows] if figure == "methods" else []
    names = {name for name, each in about.items() if figure in each.get("figures", ["methods"])}
    if not names - {SAFE, RISKY}:
        return []
    names |= {name for name, each in about.items() if each["is_swept"] and figure != "methods"}
    return [point(row) for row in run.rows if row["method"] in names]


def _point(
    run: RecordedRun,
    protection: Figures,
    utility: Figures,
    resampled: Resamples,
    row: Mapping[str, Any],
) -> TradeOffPoint:
    name, role = row["setting"], _role(run, row)
    method = str(row.get("method") or ("Anchored" if role == "anchored" else name))
    x, y = protection.get(name), utility.get(name)
    both = [own[name] for own in resampled if name in own]
    return TradeOffPoint(
        label="" if role in ("safe", "risky") else name.removeprefix(method).lstrip(", "),
        role=role,
        method=method,
        protection=mean_of(x),
        utility=mean_of(y),
        num_metrics=getattr(x, "num_metrics", len(METRICS)),
        protection_std=float(getattr(x, "std", math.nan)),
        utility_std=float(getattr(y, "std", math.nan)),
        resampled=(both[0], both[1]) if len(both) == 2 else None,
    )


def _role(run: RecordedRun, row: Mapping[str, Any]) -> Role:
    if row["setting"] in (SAFE, RISKY):
        return "safe" if row["setting"] == SAFE else "risky"
    about = run.results.get("methods")
    is_ours = row.get("k") is not None if about is None else about[row["method"]]["is_swept"]
    return "anchored" if is_ours else "baseline"
