"""Settings of a run as points of protection and utility, as pictures show them."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..copying.metrics import METRICS
from ..figures.style import Look, Role, method_looks
from ..figures.trade_off import Scale, TradeOffPoint, plot_trade_off
from ..recorded_texts import ALONE, RISKY, SAFE
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
    return partial(
        plot_trade_off,
        {"": points},
        title=title,
        protection=protection[0],
        utility=utility[0],
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

    All that such a figure shows is held against the swept method. [] where nothing is. resampled:
    both figures in resamples, for how often a setting is on the front.
    """
    about = run.results.get("methods")
    if about is None:
        names = {method for method, _ in methods_of(run).values()} if figure == "methods" else set()
    else:
        names = {own for own, each in about.items() if figure in each.get("figures", ["methods"])}
        if not names - {SAFE, RISKY}:
            return []
        names |= {own for own, each in about.items() if each["is_swept"] and figure != "methods"}
    looks = looks_of(run)
    point = partial(_point, protection, utility, resampled or ({}, {}))
    return [
        point(setting=setting, method=method, look=looks[setting])
        for setting, (method, _) in methods_of(run).items()
        if method in names
    ]


def methods_of(run: RecordedRun) -> dict[str, tuple[str, Role]]:
    """By setting, the method that it is one of, and the role of that.

    A run that names no methods, as a quickstart, has its budgets as settings of one.
    """
    about = run.results.get("methods")
    methods: dict[str, tuple[str, Role]] = {}
    for row in run.rows:
        name = str(row["setting"])
        is_ours = row.get("k") is not None if about is None else about[row["method"]]["is_swept"]
        method = str(row.get("method") or ("Anchored" if is_ours else name))
        methods[name] = method, "anchored" if is_ours else "baseline"
        if name in (SAFE, RISKY):
            methods[name] = name, "safe" if name == SAFE else "risky"
    return methods


def looks_of(run: RecordedRun) -> dict[str, Look]:
    """By setting, the look of its method: the same in every picture, whichever of them it shows."""
    methods = methods_of(run)
    looks = method_looks(dict(methods.values()))
    return {setting: looks[method] for setting, (method, _) in methods.items()}


def _point(
    protection: Figures,
    utility: Figures,
    resampled: Resamples,
    *,
    setting: str,
    method: str,
    look: Look,
) -> TradeOffPoint:
    x, y = protection.get(setting), utility.get(setting)
    both = [own[setting] for own in resampled if setting in own]
    return TradeOffPoint(
        label=setting.removeprefix(method).lstrip(", "),
        method=ALONE.get(setting, method),
        look=look,
        protection=mean_of(x),
        utility=mean_of(y),
        num_metrics=getattr(x, "num_metrics", len(METRICS)),
        protection_std=float(getattr(x, "std", math.nan)),
        utility_std=float(getattr(y, "std", math.nan)),
        num_seeds=max(getattr(cell, "num_seeds", 1) for cell in (x, y)),
        resampled=(both[0], both[1]) if len(both) == 2 else None,
    )
