"""What a sweep leaves behind: the paper's tables, beside the results of any experiment."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ...durable_files import write_durably
from ..copying.ncr import high_protection
from ..recorded_texts import RISKY, SAFE
from ..report import tables
from ..report.tables import Column, Parts
from .experiment import Experiment
from .results import result_columns, write_results
from .summary import SettingSummary, summarize
from .sweep import SECTIONS, Sweep

SCHEMA = "anchored-sweep/1"


def write_sweep_results(experiment: Experiment, sweep: Sweep) -> None:
    """results.json; table and high_protection as .md and .tex; pictures; report.html.

    All of it follows from what is recorded in the folder.
    """
    summaries = summarize(experiment)
    chosen = _protected(summaries, experiment.extra)
    for name, text in _table_files(experiment, sweep, summaries, chosen).items():
        write_durably(experiment.folder / name, text)
    about = {
        "schema": SCHEMA,
        "settings": _settings(sweep),
        "methods": _about_methods(sweep),
        "high_protection": {
            method: None if summary is None else summary.setting.name
            for method, summary in chosen.items()
        },
    }
    write_results(experiment, summaries, about)


def sweep_report(experiment: Experiment) -> str:
    """What the terminal shows at the end: both tables."""
    summaries = summarize(experiment)
    rows = [summary.as_row() for summary in summaries]
    table = tables.terminal_table(rows, result_columns(experiment, summaries))
    if not experiment.extra:
        return table
    chosen = _protected_rows(_protected(summaries, experiment.extra))
    best = tables.terminal_table(chosen, _protected_columns(experiment))
    return f"{table}\n\nBest utility at NCR >= 0.75:\n{best}"


def _settings(sweep: Sweep) -> dict[str, Any]:
    """Those of the file; where files and models lay decides nothing."""
    own = asdict(sweep) | {"utility": sweep.utility_set}
    return {name: value for name, value in own.items() if name not in ("inputs", "placement")}


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
    both = {"table": (rows, result_columns(experiment, summaries))}
    if experiment.extra:
        both["high_protection"] = (_protected_rows(chosen), _protected_columns(experiment))
    files = {}
    for name, (own, columns) in both.items():
        by_section = [
            (section, [row for row in own if about[row["method"]]["section"] == section])
            for section in SECTIONS
        ]
        parts: Parts = [(section, members) for section, members in by_section if members]
        files[f"{name}.md"] = tables.markdown_table_of_parts(parts, columns) + "\n"
        files[f"{name}.tex"] = tables.latex_table_of_parts(parts, columns) + "\n"
    return files
