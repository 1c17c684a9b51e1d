"""Factual precision by budget, split by how often the entity is met."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..figures.series import Series, plot_series
from ..report.tables import Column
from ..statistics import SeedStatistics
from .analysis import Analysis
from .recorded_run import NotMeasured, RecordedRun


def precision_by_group(run: RecordedRun) -> Analysis:
    """What `anchored judge factuality` recorded of each group of texts, against k.

    Source: paper, section "Long-tail Knowledge vs. k".
    """
    results = run.evaluated("factuality")
    groups = list(dict.fromkeys(name for own in results["settings"] for name in own["by_group"]))
    if not groups:
        raise NotMeasured("the judged texts name no group (as how frequent an entity is)")
    rows = [
        {
            "setting": own["setting"],
            "k": run.ks.get(own["setting"]),
            **{name: _macro(own["by_group"].get(name)) for name in groups},
        }
        for own in results["settings"]
    ]
    swept = [row for row in rows if row["setting"] in run.k_sweep]
    return Analysis(
        title="Factual precision by group of texts",
        note="Share of supported claims, the mean over texts, then over seeds. The picture shows "
        "the settings that differ in k alone.",
        columns=[
            Column(key="setting", title="setting"),
            Column(key="k", title="k", num_decimals=2),
            *(Column(key=name, title=name) for name in groups),
        ],
        rows=rows,
        draw=partial(
            plot_series,
            {"": {name: _curve(swept, name) for name in groups}},
            title="Factual precision by group of texts",
            x_label="k, nats a step",
            y_label="share of supported claims",
            log_x=True,
        ),
    )


def _macro(figures: Mapping[str, Any] | None) -> SeedStatistics | None:
    return SeedStatistics.recorded(figures["macro"]) if figures else None


def _curve(rows: list[dict[str, Any]], name: str) -> Series:
    found = sorted((row["k"], row[name].mean) for row in rows if row[name])
    return Series([k for k, _ in found], [precision for _, precision in found])
