"""What a sweep leaves behind: the paper's tables, beside the results of any experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...durable_files import write_durably
from ..copying.ncr import high_protection
from ..recorded_texts import RISKY, SAFE, grouped
from ..report import tables
from ..report.tables import Column, Parts
from .experiment import Experiment
from .results import write_results
from .summary import SettingSummary, summarize
from .sweep import SECTIONS, Sweep

SCHEMA = "anchored-sweep/1"


Tables = dict[str, tuple[list[dict[str, Any]], list[Column]]]
"""Rows and columns by the name of a file."""


def write_sweep_results(experiment: Experiment, sweep: Sweep) -> str:
    """results.json; table and high_protection as .md and .tex; pictures; report.html.

    All of it follows from what is recorded in the folder. Returns both tables as the terminal shows
    them.
    """
    summaries = summarize(experiment)
    chosen = _protected(summaries, experiment.extra)
    both, methods = _tables(experiment, summaries, chosen), _about_methods(sweep)
    for name, (rows, columns) in both.items():
        by_section = grouped(rows, lambda row: str(methods[row["method"]]["section"]))
        parts: Parts = [(own, by_section[own]) for own in SECTIONS if own in by_section]
        markdown = tables.markdown_table_of_parts(parts, columns)
        latex = tables.latex_table_of_parts(parts, columns)
        write_durably(experiment.folder / f"{name}.md", markdown + "\n")
        write_durably(experiment.folder / f"{name}.tex", latex + "\n")
    # Where files and models lay decides nothing.
    settings = asdict(sweep) | {"utility": sweep.utility_set}
    about = {
        "schema": SCHEMA,
        "settings": {n: own for n, own in settings.items() if n not in ("inputs", "placement")},
        "methods": methods,
        "high_protection": {
            method: None if summary is None else summary.setting.name
            for method, summary in chosen.items()
        },
    }
    write_results(experiment, summaries, about)
    return "\n\nBest utility at NCR >= 0.75:\n".join(
        tables.terminal_table(rows, columns) for rows, columns in both.values()
    )


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


def _protected(summaries: Sequence[SettingSummary], extra: str) -> dict[str, SettingSummary | None]:
    """By method its best setting at high protection; {} without held-out texts.

    Fewer bits per byte are better.
    """
    if not extra:
        return {}
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


def _tables(
    experiment: Experiment,
    summaries: Sequence[SettingSummary],
    chosen: Mapping[str, SettingSummary | None],
) -> Tables:
    """Every setting; of each method the chosen one, an empty row where none protects."""
    rows = [{"method": own.setting.method, **own.as_row()} for own in summaries]
    both: Tables = {"table": (rows, tables.result_columns(rows))}
    if experiment.extra:
        best = [{"method": name} | (own.as_row() if own else {}) for name, own in chosen.items()]
        columns = [
            Column(key="method", title="method"),
            tables.SETTING_COLUMN,
            tables.bits_per_byte_column(experiment.extra),
            Column(key="gap_closed", title="gap closed", num_decimals=2),
            Column(key="ncr", title="NCR"),
        ]
        both["high_protection"] = (best, columns)
    return both
