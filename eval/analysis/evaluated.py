"""Results of measures and judges on a run's texts, with the protection of each setting.

The first cell of a judge is its figure; texts without one are counted in other cells.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..copying.literal import LONG_SPANS, QUANTILES
from ..copying.metrics import METRICS, installed_in
from ..figures.distributions import Series, plot_series
from ..figures.trade_off import NCR, Scale
from ..recorded_texts import ALONE, rows_by_setting
from ..report.page import Section
from ..report.tables import (
    SETTING_COLUMN,
    Cell,
    Column,
    columns_of,
    copying_columns,
    terminal_table,
)
from ..statistics import mean_of
from .recorded_run import NotMeasured, RecordedRun
from .trade_offs import judged_in_resamples, looks_of, ncr_in_resamples, trade_off

Cells = dict[str, Cell]
Figures = Mapping[str, Any]
"""One of a results file's "settings"."""


def _copying_cells(figures: Figures) -> Cells:
    names = (*METRICS, "ncr", *installed_in(figures))
    metrics = {name: figures.get(name) for name in names}
    cells = {"texts": figures.get("num_texts"), **metrics, **_span_cells(figures)}
    if difference := figures.get("difference"):
        interval = " [-]" if difference["low"] is None else " [{low:+.3f}, {high:+.3f}]"
        cells["difference"] = ("{ncr:+.3f}" + interval).format(**difference)
    return cells


@dataclass(frozen=True, kw_only=True, slots=True)
class Judge:
    """The table and the axis of a judge's results."""

    title: str
    note: str
    label: str
    """Axis label of its figure, the first of the cells."""
    cells: Mapping[str, str]
    """Shown entries of a setting's results, by the titles of the columns."""


JUDGES: Final = {
    "fluency": Judge(
        title="Fluency",
        note="Grades from 1 to 5 by a judge, means over texts and seeds. Texts without a word "
        "(empty) and those without a readable answer (failed) have no grade.",
        label="fluency, 1 to 5",
        cells={
            "fluency": "fluency",
            "judged": "num_judged",
            "empty": "num_empty",
            "failed": "num_failed",
        },
    ),
    "factuality": Judge(
        title="Factuality",
        note="Shares of claims that evidence supports: macro over texts, micro over claims. Texts "
        "without claims, texts that failures leave unscored, and sentences and claims that failed "
        "are counted.",
        label="supported claims (macro)",
        cells={
            "macro": "macro",
            "micro": "micro",
            "claims/text": "claims_per_text",
            "no claims": "num_without_claims",
            "unscored": "num_unscored",
            "failed": "num_failed",
        },
    ),
    "win-rate": Judge(
        title="Win rate",
        note="How often a judge prefers a text to one of another setting, both orders asked; a tie "
        "is one half, and so is a judge who contradicts itself (inconsistent). From, to: the "
        "interval of a bootstrap over prompts.",
        label="win rate",
        cells={
            "win rate": "win_rate",
            "from": "low",
            "to": "high",
            "compared": "num_compared",
            "inconsistent": "num_inconsistent",
            "failed": "num_failed",
        },
    ),
    "answers": Judge(
        title="Answers",
        note="F1 of the words of each answer's first line with the right answer's, the mean over "
        "texts, then over seeds. No model is asked.",
        label="answers, F1",
        cells={"answers": "f1", "texts": "num_texts"},
    ),
}
_NONLITERAL: Final = {
    "overlap": "share",
    "matched": "mean_matched",
    "texts": "num_texts",
    "with debt": "num_with_debt",
}


def _cells(name: str, figures: Figures) -> Cells:
    """A row of a setting without its name."""
    if name == "copying":
        return _copying_cells(figures)
    low, high = figures.get("interval") or (None, None)
    figures = {"low": low, "high": high, **figures}
    if name == "factuality":
        failed = figures["num_failed_sentences"] + figures["num_failed_claims"]
        figures = {**figures, "num_failed": failed}
    shown = _NONLITERAL if name == "nonliteral" else JUDGES[name].cells
    return {key: figures[entry] for key, entry in shown.items()}


def judged_figure(judge: str, figures: Figures) -> Cell:
    """The judge's figure of a setting; None if nothing could be judged."""
    return next(iter(_cells(judge, figures).values()))


def evaluation_columns(name: str, results: Mapping[str, Any]) -> list[Column]:
    """The columns of a measure's or judge's table."""
    if name == "copying":
        beside = results.get("beside")
        difference = columns_of(("difference", f"NCR - {beside}")) if beside else []
        copying = copying_columns(name for figures in results["settings"] for name in figures)
        return [*columns_of("setting", "texts"), *copying, *difference, *_span_columns(results)]
    if name == "nonliteral":
        overlap = ("overlap", _overlap_title(results))
        matched = ("matched", "characters", 2)
        return columns_of("setting", overlap, matched, "texts", "with debt")
    return columns_of("setting", *JUDGES[name].cells)


def _span_columns(results: Mapping[str, Any]) -> list[Column]:
    """Longest copied spans of texts, and of all texts of a prompt where there are several."""
    n = LONG_SPANS[1]
    num_samples = min((figures["num_samples"] for figures in results["settings"]), default=1)
    longest = ("longest", f"longest of {num_samples}", 1)
    of_samples = columns_of((f"any above {n}", f"> {n} in any of {num_samples}"), longest)
    return [
        *columns_of(*((f"above {n}", f"> {n} words") for n in LONG_SPANS)),
        *columns_of(*((f"q{q}", "longest" if q == 1 else f"{q:.0%}", 0) for q in QUANTILES)),
        *(of_samples if num_samples > 1 else []),
    ]


def _span_cells(figures: Figures) -> Cells:
    return {
        **{f"above {n}": share for n, share in figures["share_above"].items()},
        **{f"q{q}": length for q, length in figures["quantiles"]["word_lcs"].items()},
        **{f"any above {n}": chance for n, chance in figures["chance_above"].items()},
        "longest": figures["longest_of_samples"],
    }


def evaluation_table(name: str, results: Mapping[str, Any]) -> str:
    """A measure's or judge's table for the terminal."""
    return terminal_table(evaluation_rows(name, results), evaluation_columns(name, results))


def evaluation_rows(name: str, results: Mapping[str, Any]) -> list[Cells]:
    """The rows of a measure's or judge's table."""
    settings = results["settings"]
    return [{"setting": each["setting"], **_cells(name, each)} for each in settings]


def _overlap_title(results: Mapping[str, Any]) -> str:
    return f"characters {results['config']['comparator']} {results['config']['num_characters']}"


def copying_distribution(run: RecordedRun) -> Section:
    """The lengths of the longest copied spans of each setting's texts, which means hide."""
    results = run.evaluated("copying")
    tails: dict[str, Series] = {}
    rows = rows_by_setting(results["rows"])
    for name in filter(rows.__contains__, run.by_setting):
        words = [row["word_lcs"] for row in rows[name]]
        lengths = range(1, max(words) + 2)
        shares = [sum(count >= length for count in words) / len(words) for length in lengths]
        tails[ALONE.get(name, name)] = Series([float(length) for length in lengths], shares)
    return Section(
        title="How long copied spans are",
        note="Of each text its longest span that the reference has too, in words: the share of "
        "texts above some lengths, and quantiles; then of the longest in several texts of a "
        "prompt, as one gets who draws them all.",
        columns=[SETTING_COLUMN, *_span_columns(results)],
        rows=[{"setting": each["setting"], **_span_cells(each)} for each in results["settings"]],
        draw=partial(
            plot_series,
            {"": tails},
            title="How long the longest copied spans are",
            x_label="words",
            y_label="share of texts with as many or more",
            look="steps",
            colors={ALONE.get(name, name): color for name, (color, _) in looks_of(run).items()},
        ),
    )


def character_overlap(run: RecordedRun) -> Section:
    """Characters of works that stories about them take over, with the stories' fluency."""
    results = run.evaluated("nonliteral")
    fluency, title = _judged(run, "fluency"), _overlap_title(results)
    rows = evaluation_rows("nonliteral", results)
    rows = [{**row, "fluency": fluency.get(str(row["setting"]))} for row in rows]
    overlap = {str(row["setting"]): row["overlap"] for row in rows}
    columns = evaluation_columns("nonliteral", results)
    columns.insert(3, Column("fluency", num_decimals=2))
    return Section(
        title="Characters taken over",
        note=f"Non-literal copying: the share of texts with {title} of the work, and how many a "
        "text names. Texts with a prefix debt are counted: the paper decodes these without.",
        columns=columns,
        rows=rows,
        draw=trade_off(
            run,
            protection=(Scale(f"share of texts with {title}", lower_is_better=True), overlap),
            utility=(Scale("fluency, 1 to 5"), fluency),
            title="Characters taken over and fluency",
        ),
    )


def judgement(judge: str, run: RecordedRun) -> Section:
    """A judge's figures with its failures; the picture has them against NCR. judge: a name in
    JUDGES. Raises: NotMeasured, ValueError."""
    results, shown = run.evaluated(judge), JUDGES[judge]
    if not results["settings"]:
        raise NotMeasured("the judge has judged no text")
    return Section(
        title=shown.title,
        note=shown.note,
        columns=evaluation_columns(judge, results),
        rows=evaluation_rows(judge, results),
        draw=trade_off(
            run,
            protection=(NCR, {row["setting"]: row["ncr"] for row in run.rows}),
            utility=(Scale(shown.label), _judged(run, judge)),
            title=f"Protection and {shown.title.lower()}, one point per setting",
            resampled=(ncr_in_resamples(run), judged_in_resamples(run, judge)),
        ),
    )


def precision_by_group(run: RecordedRun) -> Section:
    """The factual precision of each group of texts, against k. Source: paper, section "Long-tail
    Knowledge vs. k"."""
    settings = run.evaluated("factuality")["settings"]
    groups = list(dict.fromkeys(name for figures in settings for name in figures["by_group"]))
    if not groups:
        raise NotMeasured("the judged texts name no group (as how frequent an entity is)")
    ks = {row["setting"]: row.get("k") for row in run.rows}
    rows = [
        {
            "setting": figures["setting"],
            "k": ks.get(figures["setting"]),
            **{name: (figures["by_group"].get(name) or {}).get("macro") for name in groups},
        }
        for figures in settings
    ]
    curves: dict[str, Series] = {}
    for group in groups:  # no method has a k but those that are swept
        points = ((mean_of(row["k"]), mean_of(row[group])) for row in rows)
        known = sorted(point for point in points if not any(map(math.isnan, point)))
        curves[group] = Series([k for k, _ in known], [figure for _, figure in known])
    return Section(
        title="Factual precision by group of texts",
        note="Share of supported claims, the mean over texts, then over seeds. The picture shows "
        "the settings that differ in k alone.",
        columns=columns_of("setting", ("k", "", 2), *groups),
        rows=rows,
        draw=partial(
            plot_series,
            {"": curves},
            title="Factual precision by group of texts",
            x_label="k, nats per step",
            y_label="share of supported claims",
            log_x=True,
        ),
    )


def judged_figures(run: RecordedRun) -> dict[str, dict[str, Cell]]:
    """The recorded figures of each judge, by setting."""
    return {judge: figures for judge in JUDGES if (figures := _judged(run, judge))}


def _judged(run: RecordedRun, judge: str) -> dict[str, Cell]:
    """Figures by setting; {} without the judge's results."""
    try:
        settings = run.evaluated(judge)["settings"]
    except NotMeasured:
        return {}
    return {figures["setting"]: judged_figure(judge, figures) for figures in settings}
