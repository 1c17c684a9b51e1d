"""What a sweep leaves behind: results.json, the paper's tables and pictures, a page of texts."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ...durable_files import write_durably
from ...environment import environment_record
from ..copying.ncr import high_protection
from ..figures.style import Pictures, Role, drawn
from ..figures.trade_off import Scale, TradeOffPoint, plot_methods
from ..report import tables
from ..report.tables import Column, Parts
from .experiment import RISKY, SAFE, Experiment
from .results import result_columns, trade_off_point, write_side_by_side
from .summary import SettingSummary, summarize
from .sweep import FIGURES, SECTIONS, Sweep

SCHEMA = "anchored-sweep/1"
PANELS = {
    "methods": ("methods",),
    "ablations": ("objective", "debt", "budget"),
    "debt_window": ("debt_window",),
}
"""By picture, the figures of `Method.figures` that are its panels."""
TITLES = {
    "methods": "Protection and utility of every method, one point a setting",
    "ablations": "What each part of Anchored Decoding is worth",
    "debt_window": "Windows of the prefix debt: 0 is NoDebt, 5 is Anchored",
}


def write_sweep_results(experiment: Experiment, sweep: Sweep) -> None:
    """results.json; table and high_protection as .md, .tex and .csv; pictures; side_by_side.html.

    All of it follows from what is recorded in the folder.
    """
    summaries = summarize(experiment)
    chosen = _protected(summaries, experiment.extra)
    results = {
        "schema": SCHEMA,
        "settings": _settings(sweep),
        "environment": environment_record(),
        "metric_set": experiment.copying.metric_set,
        "methods": _about_methods(sweep),
        "rows": [_plain_row(summary) for summary in summaries],
        "high_protection": {
            method: None if summary is None else summary.setting.name
            for method, summary in chosen.items()
        },
        "examples": [_slim(row) for row in experiment.read_rows("copying")],
        "utility": experiment.read_rows("utility"),
    }
    folder = experiment.folder
    write_durably(folder / "results.json", json.dumps(results, allow_nan=False) + "\n")
    for name, text in _table_files(experiment, sweep, summaries, chosen).items():
        write_durably(folder / name, text)
    draw_sweep_pictures(folder)
    write_side_by_side(experiment, title="The same prompt by every method")


def sweep_report(experiment: Experiment) -> str:
    """What the terminal shows at the end: both tables."""
    summaries = summarize(experiment)
    rows = [summary.as_row() for summary in summaries]
    chosen = _protected_rows(_protected(summaries, experiment.extra))
    table = tables.terminal_table(rows, result_columns(experiment))
    best = tables.terminal_table(chosen, _protected_columns(experiment))
    return f"{table}\n\nBest utility at NCR >= 0.75:\n{best}"


def draw_sweep_pictures(folder: Path) -> list[Path]:
    """The pictures of what results.json in `folder` holds, written beside it; their paths."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    pictures: Pictures = {}
    for name, figures in PANELS.items():
        panels = {FIGURES[figure]: _points(results, figure) for figure in figures}
        if panels := {title: points for title, points in panels.items() if points}:
            pictures[name] = _picture(panels, results, TITLES[name])
    return drawn(folder, pictures)


def _picture(panels: Mapping[str, list[TradeOffPoint]], results: Any, title: str) -> Any:
    settings = results["settings"]
    return lambda path: plot_methods(
        panels,
        path,
        title=title,
        utility=Scale.bits_per_byte(f"held-out {settings['utility']}"),
        num_seeds=len(settings["seeds"]),
    )


def _points(results: Any, figure: str) -> list[TradeOffPoint]:
    """Of the methods of one figure, and of Anchored Decoding, which all are compared with.

    None where there is nothing to compare. The two models alone stand among the methods.
    """
    about = results["methods"]
    own = {name for name, method in about.items() if figure in method["figures"]}
    if not own - {SAFE, RISKY}:
        return []
    own |= {name for name, method in about.items() if method["is_swept"]}
    return [
        _point(row, about[row["method"]], results["settings"]["utility"])
        for row in results["rows"]
        if row["method"] in own
    ]


def _point(row: dict[str, Any], about: Mapping[str, Any], extra: str) -> TradeOffPoint:
    figures = {f"bits_per_byte/{extra}": row[f"bits_per_byte/{extra}"] or math.nan}
    point = trade_off_point(row | figures, extra)
    if row["method"] in (SAFE, RISKY):
        return replace(point, label="", method=row["method"])
    suffix = row["setting"].removeprefix(row["method"]).lstrip(", ")
    role: Role = "anchored" if about["is_swept"] else "baseline"
    return replace(point, label=suffix, role=role, method=row["method"])


def _settings(sweep: Sweep) -> dict[str, Any]:
    """Those of the file; where the files lay decides nothing."""
    own = asdict(sweep) | {"utility": sweep.utility_set}
    return {name: value for name, value in own.items() if name != "inputs"}


def _about_methods(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """By label; the two models alone first."""
    alone = {"section": SECTIONS[0], "figures": ["methods"], "is_swept": False}
    about = {SAFE: {**alone, "rule": "safe_only"}, RISKY: {**alone, "rule": "risky_only"}}
    for method in sweep.methods:
        about[method.label] = {
            "section": method.section,
            "figures": method.figures,
            "is_swept": method.section == SECTIONS[3] and method.rule == "anchored",
            "rule": method.rule,
        }
    return about


def _plain_row(summary: SettingSummary) -> dict[str, Any]:
    return {**summary.as_json(), "method": summary.setting.method}


def _slim(row: dict[str, Any]) -> dict[str, Any]:
    """Without the spans, which stay in measurements/copying.json."""
    spans = ("word_lcs_span", "char_lcs_span", "word_acs_spans", "copied_characters")
    return {name: value for name, value in row.items() if name not in spans}


def _protected(summaries: Sequence[SettingSummary], extra: str) -> dict[str, SettingSummary | None]:
    """By method its best setting at high protection; fewer bits per byte are better."""
    rows: list[dict[str, Any]] = [
        {
            "method": summary.setting.method,
            "ncr": summary.ncr.mean,
            "utility": -summary.utility[extra].bits_per_byte,
            "summary": summary,
        }
        for summary in summaries
    ]
    best = high_protection(rows, utility="utility")
    return {method: None if row is None else row["summary"] for method, row in best.items()}


def _protected_columns(experiment: Experiment) -> list[Column]:
    bits = tables.bits_per_byte_column(experiment.extra)
    ncr = Column(key="ncr", title="NCR")
    gap = Column(key="gap_closed", title="gap closed", num_decimals=2)
    return [Column(key="method", title="method"), tables.SETTING_COLUMN, bits, gap, ncr]


def _protected_rows(chosen: Mapping[str, SettingSummary | None]) -> list[dict[str, Any]]:
    """A method without a protected setting has an empty row."""
    return [
        {"method": method} | ({} if summary is None else summary.as_row())
        for method, summary in chosen.items()
    ]


def _table_files(
    experiment: Experiment,
    sweep: Sweep,
    summaries: Sequence[SettingSummary],
    chosen: Mapping[str, SettingSummary | None],
) -> dict[str, str]:
    """Contents by file name."""
    about = _about_methods(sweep)
    rows = [{"method": s.setting.method, **s.as_row()} for s in summaries]
    whole = (rows, result_columns(experiment))
    protected = (_protected_rows(chosen), _protected_columns(experiment))
    files = {}
    for name, (own, columns) in {"table": whole, "high_protection": protected}.items():
        by_section = [
            (section, [row for row in own if about[row["method"]]["section"] == section])
            for section in SECTIONS
        ]
        parts: Parts = [(section, members) for section, members in by_section if members]
        files[f"{name}.md"] = tables.markdown_table_of_parts(parts, columns) + "\n"
        files[f"{name}.tex"] = tables.latex_table_of_parts(parts, columns) + "\n"
        files[f"{name}.csv"] = tables.csv_table(own, columns)
    return files
