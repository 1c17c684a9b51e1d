"""Settings of a run as points of protection and utility, with both figures in resamples.

A resample draws as many units (prompts, excerpts, judged texts) as there are, with replacement, for
all settings alike, and for two figures of the same units alike.
"""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from ..copying.literal import resampled_ncr
from ..copying.metrics import METRICS, prompt_means
from ..figures.style import Look, Role, method_looks
from ..figures.trade_off import Scale, TradeOffPoint, plot_trade_off
from ..recorded_texts import ALONE, RISKY, SAFE, grouped, rows_by_setting
from ..report.tables import Cell
from ..statistics import Array, mean_of, resampled_shares, std_of
from .recorded_run import NotMeasured, RecordedRun

NUM_RESAMPLES: Final = 1000
"""A share of them has a standard error of 0.016 at most."""
_FIGURES: Final = {
    "fluency": "fluency",
    "factuality": "precision",
    "win-rate": "score",
    "answers": "f1",
}
"""The entry of a text's figure in the rows of each judge."""

Resampled = dict[str, Array]
"""Figures by setting: (NUM_RESAMPLES,), nan if a resample has none."""

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
    """The picture of two figures of the run's methods; None if no setting has both."""
    points = trade_off_points(run, protection[1], utility[1], resampled=resampled)
    if not any(math.isfinite(p.protection) and math.isfinite(p.utility) for p in points):
        return None
    return partial(
        plot_trade_off, {"": points}, title=title, protection=protection[0], utility=utility[0]
    )


def trade_off_points(
    run: RecordedRun,
    protection: Figures,
    utility: Figures,
    *,
    figure: str = "methods",
    resampled: Resamples | None = None,
) -> list[TradeOffPoint]:
    """Points of the methods of one figure of a sweep, and of those that sweep k, with which every
    figure compares its methods, in rows' order. [] for a figure without methods. resampled: both
    figures in resamples, for the share in which a setting is on the front."""
    about = run.results.get("methods")
    if about is None:
        names = {method for method, _ in methods_of(run).values()} if figure == "methods" else set()
    else:
        names = {n for n, each in about.items() if figure in each.get("figures", ["methods"])}
        if not names - {SAFE, RISKY}:
            return []
        names |= {n for n, each in about.items() if each["is_swept"] and figure != "methods"}
    looks, points = looks_of(run), []
    for setting, (method, _) in methods_of(run).items():
        if method not in names:
            continue
        x, y = protection.get(setting), utility.get(setting)
        both = [of[setting] for of in resampled or () if setting in of]
        points.append(
            TradeOffPoint(
                label=setting.removeprefix(method).lstrip(", "),
                method=ALONE.get(setting, method),
                look=looks[setting],
                protection=mean_of(x),
                utility=mean_of(y),
                num_metrics=_count(x, "num_metrics", len(METRICS)),
                protection_std=std_of(x),
                utility_std=std_of(y),
                num_seeds=max(_count(cell, "num_seeds", 1) for cell in (x, y)),
                resampled=(both[0], both[1]) if len(both) == 2 else None,
            )
        )
    return points


def methods_of(run: RecordedRun) -> dict[str, tuple[str, Role]]:
    """The method of each setting, and its role. A run without methods, as a quickstart, has its
    budgets as settings of one."""
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
    """The look of each setting's method, the same in every picture."""
    methods = methods_of(run)
    looks = method_looks(dict(methods.values()))
    return {setting: looks[method] for setting, (method, _) in methods.items()}


def _count(cell: Cell, name: str, default: int) -> int:
    return int(cell.get(name, default)) if isinstance(cell, Mapping) else default


def ncr_in_resamples(run: RecordedRun) -> Resampled:
    """NCR in resamples of the prompts, of the settings that have a text of every prompt. {} if
    either model alone is not measured."""
    run = run.ncr_of or run
    rows = rows_by_setting(run.results.get("examples", []))
    prompts = sorted({row["id"] for same in rows.values() for row in same})
    means = {
        name: prompt_means(same, prompts)
        for name, same in rows.items()
        if {row["id"] for row in same} == set(prompts)
    }
    if not {SAFE, RISKY} <= means.keys():
        return {}
    shares = _shares(prompts)
    return {
        name: resampled_ncr(shares, mean, risky=means[RISKY], safe=means[SAFE])
        for name, mean in means.items()
    }


def bits_in_resamples(run: RecordedRun, figure: str) -> Resampled:
    """A figure of the run's rows, "bits_per_byte/SET", in resamples of the held-out excerpts. {}
    for another figure: of accuracies no answer is recorded."""
    resampled = {}
    for row in run.results.get("utility", []):
        if f"bits_per_byte/{row['held_out']}" == figure:
            bits = [math.nan if nats is None else nats / math.log(2) for nats in row["nats"]]
            shares = _shares([f"{figure} {index}" for index in range(len(bits))])
            resampled[row["setting"]] = _ratios(shares, bits, row["num_bytes"])
    return resampled


def judged_in_resamples(run: RecordedRun, judge: str) -> Resampled:
    """A judge's figure in resamples of the prompts, of all judged texts of a prompt together."""
    try:
        rows = run.evaluated(judge)["rows"]
    except NotMeasured:
        rows = []
    if not rows:
        return {}
    prompts = sorted({row["id"] for row in rows})
    shares, resampled = _shares(prompts), {}
    for name, same in rows_by_setting(rows).items():
        known = [row for row in same if row[_FIGURES[judge]] is not None]
        texts = grouped(known, lambda row: row["id"])
        grades = [[row[_FIGURES[judge]] for row in texts.get(prompt, ())] for prompt in prompts]
        resampled[name] = _ratios(shares, list(map(math.fsum, grades)), list(map(len, grades)))
    return resampled


def _shares(units: Sequence[str]) -> Array:
    seed = zlib.crc32("\n".join(units).encode())
    return resampled_shares(len(units), num_resamples=NUM_RESAMPLES, seed=seed)


def _ratios(shares: Array, sums: Sequence[float], counts: Sequence[float]) -> Array:
    """All sums over all counts in each resample of the units; nan without a count."""
    with np.errstate(invalid="ignore"):  # 0 / 0
        return (shares @ np.array(sums)) / (shares @ np.array(counts, dtype=float))
