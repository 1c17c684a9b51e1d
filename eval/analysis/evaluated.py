"""What measures and judges made of a run's texts, beside how well each setting protects."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from ..copying.metrics import METRICS
from ..figures.series import Series, plot_series
from ..figures.style import Role
from ..figures.trade_off import NCR, Scale, TradeOffPoint, plot_methods
from ..recorded_texts import grouped
from ..report.judgements import JUDGES, columns_of
from ..report.tables import SETTING_COLUMN, SPAN_COLUMNS, Cell, Column, span_cells
from ..statistics import SeedStatistics
from .analysis import Analysis, figure_of, over_k
from .recorded_run import RISKY_RULE, SAFE_RULE, NotMeasured, RecordedRun

Figures = Mapping[str, Cell]
"""A figure by setting."""


def copying_distribution(run: RecordedRun) -> Analysis:
    """How long the longest copied spans of each setting's texts are, which means hide."""
    results = run.evaluated("copying")
    rows = [{"setting": own["setting"], **span_cells(own)} for own in results["settings"]]
    lengths = grouped(results["rows"], lambda row: run.own_name(row["setting"]))
    tails = {name: _tail([row["word_lcs"] for row in own]) for name, own in lengths.items()}
    return Analysis(
        title="How long copied spans are",
        note="Of each text its longest span that the reference has too, in words: the share of "
        "texts above some lengths, and quantiles.",
        columns=[SETTING_COLUMN, *SPAN_COLUMNS],
        rows=rows,
        draw=partial(
            plot_series,
            {"": {name: tails[name] for name in run.by_setting if name in tails}},
            title="How long the longest copied spans are",
            x_label="words",
            y_label="share of texts with as many or more",
            look="steps",
        ),
    )


def _tail(lengths: Sequence[int]) -> Series:
    """Shares of texts with at least 1, 2, ... words in a row."""
    longest = max(lengths)
    shares = [sum(own >= n for own in lengths) / len(lengths) for n in range(1, longest + 2)]
    return Series([float(n) for n in range(1, longest + 2)], shares)


def character_overlap(run: RecordedRun) -> Analysis:
    """Characters of works that stories about them take over, beside the stories' fluency."""
    results = run.evaluated("nonliteral")
    config = results["config"]
    title = f"characters {config['comparator']} {config['num_characters']}"
    fluency = _judged(run, "fluency")
    rows: list[dict[str, Cell]] = [
        {
            "setting": own["setting"],
            "overlap": SeedStatistics.recorded(own["share"]),
            "matched": SeedStatistics.recorded(own["mean_matched"]),
            "fluency": fluency.get(own["setting"]),
            "texts": own["num_texts"],
            "with debt": own["num_with_debt"],
        }
        for own in results["settings"]
    ]
    overlap = {str(row["setting"]): row["overlap"] for row in rows}
    return Analysis(
        title="Characters taken over",
        note=f"Non-literal copying: the share of texts with {title} of the work, and how many a "
        "text names. Texts with a prefix debt are counted: the paper decodes these without.",
        columns=[
            SETTING_COLUMN,
            Column(key="overlap", title=title),
            Column(key="matched", title="characters", num_decimals=2),
            Column(key="fluency", title="fluency", num_decimals=2),
            Column(key="texts", title="texts"),
            Column(key="with debt", title="with debt"),
        ],
        rows=rows,
        draw=_trade_off(
            run,
            protection=(Scale(f"share of texts with {title}", lower_is_better=True), overlap),
            utility=(Scale("fluency, 1 to 5"), fluency),
            title="Characters taken over and fluency",
        ),
    )


_JUDGED: Final[dict[str, tuple[str, str, str]]] = {
    "fluency": (
        "Fluency",
        "Grades from 1 to 5 by a judge, means over texts and seeds. Texts without a word (empty) "
        "and those without a readable answer (failed) have no grade.",
        "fluency, 1 to 5",
    ),
    "factuality": (
        "Factuality",
        "Shares of claims that evidence supports: macro over texts, micro over claims. Texts "
        "without claims, texts that failures leave unscored, and sentences and claims that failed "
        "are counted.",
        "supported claims (macro)",
    ),
    "win-rate": (
        "Win rate",
        "How often a judge prefers a text to one of another setting, both orders asked; a tie is "
        "one half, and so is a judge who contradicts itself (inconsistent). From, to: the interval "
        "of a bootstrap over prompts.",
        "win rate",
    ),
}
"""By judge: title, note and the label of its figure."""


def judgement(judge: str, run: RecordedRun) -> Analysis:
    """A judge's figures with its failures; the picture has them against NCR.

    judge: a name in JUDGES. Raises: NotMeasured, ValueError.
    """
    settings = run.evaluated(judge)["settings"]
    title, note, label = _JUDGED[judge]
    rows = [{"setting": own["setting"], **JUDGES[judge](own)} for own in settings]
    if not rows:
        raise NotMeasured(f"anchored judge {judge} has judged no text")
    return Analysis(
        title=title,
        note=note,
        columns=[SETTING_COLUMN, *columns_of(JUDGES[judge](settings[0]))],
        rows=rows,
        draw=_trade_off(
            run,
            protection=(NCR, {row["setting"]: row["ncr"] for row in run.rows}),
            utility=(Scale(label), _judged(run, judge)),
            title=f"Protection and {title.lower()}, one point a setting",
        ),
    )


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
            {"": {name: over_k(swept, name) for name in groups}},
            title="Factual precision by group of texts",
            x_label="k, nats a step",
            y_label="share of supported claims",
            log_x=True,
        ),
    )


def _macro(figures: Mapping[str, Any] | None) -> SeedStatistics | None:
    return SeedStatistics.recorded(figures["macro"]) if figures else None


def judged_figures(run: RecordedRun) -> dict[str, dict[str, Cell]]:
    """By judge, its own figure of each setting, where they were recorded."""
    return {judge: found for judge in JUDGES if (found := _judged(run, judge))}


def _judged(run: RecordedRun, judge: str) -> dict[str, Cell]:
    """{} where it has not judged."""
    try:
        settings = run.evaluated(judge)["settings"]
    except NotMeasured:
        return {}
    return {own["setting"]: next(iter(JUDGES[judge](own).values())) for own in settings}


def _trade_off(
    run: RecordedRun,
    *,
    protection: tuple[Scale, Figures],
    utility: tuple[Scale, Figures],
    title: str,
) -> Callable[[Path], None] | None:
    """The picture of two figures of the run's methods; None where no setting has both."""
    points = [
        _point(run, row, protection[1].get(row["setting"]), utility[1].get(row["setting"]))
        for row in run.rows
        if _stands_among_methods(run, row)
    ]
    if not any(math.isfinite(own.protection) and math.isfinite(own.utility) for own in points):
        return None
    return partial(
        plot_methods,
        {"": points},
        title=title,
        protection=protection[0],
        utility=utility[0],
        num_seeds=max(_num_seeds(own) for own in [*protection[1].values(), *utility[1].values()]),
    )


def _stands_among_methods(run: RecordedRun, row: Mapping[str, Any]) -> bool:
    about = run.results.get("methods", {}).get(row.get("method"), {})
    return "methods" in about.get("figures", ["methods"])


def _point(run: RecordedRun, row: Mapping[str, Any], x: Cell, y: Cell) -> TradeOffPoint:
    """A setting among those of its method; of a quickstart all are settings of one."""
    role = _role(run, row)
    method = str(row.get("method") or ("Anchored" if role == "anchored" else row["setting"]))
    label = str(row["setting"]).removeprefix(method).lstrip(", ")
    return TradeOffPoint(
        label=label,
        role=role,
        method=method,
        protection=figure_of(x),
        utility=figure_of(y),
        num_metrics=getattr(x, "num_metrics", len(METRICS)),
        protection_std=_std(x),
        utility_std=_std(y),
    )


def _role(run: RecordedRun, row: Mapping[str, Any]) -> Role:
    rule = run.rule(row["setting"])
    if rule in (SAFE_RULE, RISKY_RULE):
        return "safe" if rule == SAFE_RULE else "risky"
    about = run.results.get("methods")
    is_ours = row.get("k") is not None if about is None else about[row["method"]]["is_swept"]
    return "anchored" if is_ours else "baseline"


def _std(cell: Cell) -> float:
    return float(getattr(cell, "std", math.nan))


def _num_seeds(cell: Cell) -> int:
    return int(getattr(cell, "num_seeds", 1))
