"""Results of an experiment: results.json, tables, pictures and a page."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ... import Ledger
from ...decode.ledger import ledger_parts
from ...durable_files import write_durably
from ...environment import environment_record
from ..analysis.recorded_run import RecordedRun
from ..analysis.run_report import write_report
from ..analysis.trade_offs import bits_in_resamples, ncr_in_resamples, trade_off_points
from ..copying.literal import high_protection
from ..copying.metrics import METRIC_SET, metric_packages
from ..figures import curves
from ..figures.curves import BudgetTrajectory
from ..figures.style import Pictures, drawn
from ..figures.trade_off import Scale, plot_trade_off
from ..recorded_texts import RISKY, SAFE, grouped
from ..report import tables
from ..report.tables import BITS, Column, Parts
from ..statistics import json_value
from .experiment import Experiment
from .generations import read_generations
from .measures import recommended, summarize
from .sweep import FIGURES, SECTIONS, Sweep

DIVERGENCES = "divergences.jsonl"
"""File of the ledgers of anchored verify --divergences."""
SPANS = ("word_lcs_span", "char_lcs_span", "word_acs_spans", "copied_characters", "scored")
"""Entries of the rows of evaluation/copying.json that results.json leaves out."""
PICTURES = {
    "methods": ("Protection and utility of every method, one point per setting", ["methods"]),
    "ablations": ("What each part of Anchored Decoding is worth", ["objective", "debt", "budget"]),
    "debt_window": ("Windows of the prefix debt: 0 is NoDebt, 5 is Anchored", ["debt_window"]),
}
"""Pictures of a sweep: their titles, and the figures that are their panels."""
SWEEP_SCHEMA = "anchored-sweep/1"
PATHS = ("inputs", "placement", "folders")
"""Settings of a machine's files and GPUs, which decide no result."""
PROVED = Scale("log10 of the bound on reciting the worst work", lower_is_better=True)
PAGE_TEXTS = 4
"""Prompts whose texts the first page shows: a page of 25 settings then has 3 MB."""


def write_results(
    experiment: Experiment, rows: Sequence[dict[str, Any]], about: dict[str, Any]
) -> None:
    """Write results.json, and the pictures and the page that follow from it.

    rows: of `summarize`. about: the caller's entries of results.json: a schema, its settings, the
    training of the models.
    """
    results = {
        **about,
        "environment": environment_record(),
        "metric_set": METRIC_SET,
        **metric_packages(),
        "rows": json_value(rows),
        "examples": [
            {name: value for name, value in row.items() if name not in SPANS}
            for row in experiment.copying
        ],
        "utility": experiment.read_rows("utility"),
    }
    folder = experiment.folder
    write_durably(folder / "results.json", json.dumps(results, allow_nan=False) + "\n")
    draw_pictures(folder)
    write_report(RecordedRun(folder), folder, num_texts=PAGE_TEXTS)


def write_budget_results(
    experiment: Experiment, rows: Sequence[dict[str, Any]], about: dict[str, Any]
) -> None:
    """Write the results of a sweep of budgets, with table.md and the recommended budget.

    rows, about: as of `write_results`.
    """
    table = tables.markdown_table(rows, tables.result_columns(rows))
    write_durably(experiment.folder / "table.md", table + "\n")
    more = {
        "recommended": recommended(rows)["setting"],
        "trajectories": [asdict(each) for each in trajectories(experiment)],
    }
    write_results(experiment, rows, {**about, **more})


def trajectories(experiment: Experiment) -> Iterator[BudgetTrajectory]:
    """One generation each of the first, a middle and the last setting that both models write within
    a bound."""
    bounded = [each for each in experiment.settings if each.rule.is_certified and each.name != SAFE]
    chosen = sorted({0, len(bounded) // 2, len(bounded) - 1}) if bounded else []
    for setting in (bounded[index] for index in chosen):
        rows = read_generations(experiment, setting)
        if not rows:  # all of them failed
            continue
        # The first that went on to its length, if there is one.
        row = next((row for row in rows if row["finish_reason"] == "length"), rows[0])
        ledger = Ledger.load(experiment.folder / row["ledger"], row["ledger_part"])
        yield BudgetTrajectory.of(f"{setting.name}\n{row['id']}", ledger)


def draw_pictures(folder: Path) -> list[Path]:
    """Draw the pictures of a run into its folder; returns their paths.

    Raises FileNotFoundError without a results.json.
    """
    if not (folder / "results.json").exists():
        raise FileNotFoundError(f"there is no results.json in {folder}")
    run = RecordedRun(folder)
    symbol = run.results["settings"].get("level", "token")
    return drawn(folder, {**_trade_offs(run, symbol), **_curves(run, symbol)})


def _trade_offs(run: RecordedRun, symbol: str) -> Pictures:
    """The pictures of NCR against bits per byte, and of the methods against accuracy."""
    names = list(run.results["rows"][0])
    settings = run.results["settings"]
    bits = [name for name in names if name.startswith("bits_per_byte/")]
    pictures: Pictures = {}
    if bits:
        utility = f"bits_per_byte/{settings['utility']}" if "utility" in settings else bits[-1]
        scale = Scale.bits_per_byte(f"held-out {utility.partition('/')[2]}")
        pictures |= _pictures_of(run, utility, scale, symbol)
    for name in (name for name in names if name.startswith("accuracy/")):
        task = name.partition("/")[2]
        against = _pictures_of(run, name, Scale(f"questions answered right, {task}"), symbol)
        if picture := against.get("methods") or against.get("trade_off"):
            pictures[f"accuracy_{task}"] = picture
        if proved := _proved(run, name, Scale(f"questions answered right, {task}")):
            pictures[f"proved_{task}"] = proved
    if bits and (proved := _proved(run, utility, scale)):
        pictures["proved"] = proved
    return pictures


def _proved(run: RecordedRun, utility: str, scale: Scale) -> Callable[[Path], None] | None:
    """The picture of what bounds prove about recitals against one figure of the rows."""
    rows = [row for row in run.rows if row["setting"] not in (SAFE, RISKY)]
    proved, kept = (
        {row["setting"]: row.get(name) for row in rows} for name in ("log10_recited", utility)
    )
    points = [
        point
        for point in trade_off_points(run, proved, kept)
        if math.isfinite(point.protection) and math.isfinite(point.utility)
    ]
    if not points:
        return None
    return partial(
        plot_trade_off,
        {"": points},
        title="What is proved against what is kept",
        protection=PROVED,
        utility=scale,
    )


def _pictures_of(run: RecordedRun, utility: str, scale: Scale, symbol: str) -> Pictures:
    """The pictures of NCR against one figure of the rows."""
    figures = [{row["setting"]: row.get(name) for row in run.rows} for name in ("ncr", utility)]
    resampled = ncr_in_resamples(run), bits_in_resamples(run, utility)
    draw = partial(plot_trade_off, utility=scale)
    titled = PICTURES
    if "methods" not in run.results:  # of a quickstart: budgets alone
        title = f"Protection and utility, one point per budget (k in nats per {symbol})"
        titled = {"trade_off": (title, ["methods"])}
    pictures: Pictures = {}
    for name, (title, panels) in titled.items():
        points = {
            FIGURES[figure]: shown
            for figure in panels
            if (shown := trade_off_points(run, *figures, figure=figure, resampled=resampled))
        }
        if points:
            pictures[name] = partial(draw, points, title=title)
    return pictures


def _curves(run: RecordedRun, symbol: str) -> Pictures:
    """The pictures of budgets and divergences that the run recorded."""
    pictures: Pictures = {}
    if budgets := [BudgetTrajectory(**each) for each in run.results.get("trajectories", [])]:
        pictures["budgets"] = partial(curves.plot_budget_trajectories, budgets, symbol=symbol)
    if (run.folder / DIVERGENCES).exists():
        path = run.folder / DIVERGENCES
        ledgers = [Ledger.load(path, part) for part in ledger_parts(path)]
        pictures["divergences"] = partial(curves.plot_divergences, ledgers)
    return pictures


Tables = dict[str, tuple[list[dict[str, Any]], list[Column]]]
"""Rows and columns by the name of a file."""


def write_sweep_results(experiment: Experiment, sweep: Sweep) -> str:
    """Write results.json; table and high_protection as .md and .tex; pictures; report.html.

    All of it follows from the records in the folder. Returns both tables as the terminal shows
    them.
    """
    all_rows = summarize(experiment)
    chosen = _protected(all_rows, experiment.extra)
    both, methods = _tables(experiment, all_rows, chosen), _about_methods(sweep)
    for name, (rows, columns) in both.items():
        by_section = grouped(rows, lambda row: str(methods[row["method"]]["section"]))
        parts: Parts = [(part, by_section[part]) for part in SECTIONS if part in by_section]
        markdown = tables.markdown_table_of_parts(parts, columns)
        latex = tables.latex_table_of_parts(parts, columns)
        write_durably(experiment.folder / f"{name}.md", markdown + "\n")
        write_durably(experiment.folder / f"{name}.tex", latex + "\n")
    settings = asdict(sweep) | {"utility": sweep.utility_set}
    about = {
        "schema": SWEEP_SCHEMA,
        "settings": {name: value for name, value in settings.items() if name not in PATHS},
        "methods": methods,
        "high_protection": {
            method: None if row is None else row["setting"] for method, row in chosen.items()
        },
    }
    write_results(experiment, all_rows, about)
    return "\n\nBest utility at NCR >= 0.75:\n".join(
        tables.terminal_table(rows, columns) for rows, columns in both.values()
    )


def _about_methods(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Section, figures and rule of each method by label; the two models alone first."""
    alone = {"section": SECTIONS[0], "figures": ["methods"], "is_swept": False}
    about = {SAFE: {**alone, "rule": "safe_only"}, RISKY: {**alone, "rule": "risky_only"}}
    for method in sweep.methods:
        about[method.label] = {
            "section": method.section,
            "figures": method.figures,
            "is_swept": method.is_swept,
            "rule": method.rule,
        }
    return about


def _protected(rows: Sequence[dict[str, Any]], extra: str) -> dict[str, dict[str, Any] | None]:
    """The best row of each method at high protection, by bits per byte; {} if not measured."""
    if not extra:
        return {}
    return high_protection(
        [{**row, "utility": -row[f"{BITS}{extra}"]} for row in rows], utility="utility"
    )


def _tables(
    experiment: Experiment, rows: list[dict[str, Any]], chosen: Mapping[str, dict[str, Any] | None]
) -> Tables:
    """Every setting; the chosen one of each method, an empty row if none protects."""
    both: Tables = {"table": (rows, tables.result_columns(rows))}
    if experiment.extra:
        best = [{"method": name} | (row or {}) for name, row in chosen.items()]
        columns = [
            Column("method"),
            tables.SETTING_COLUMN,
            tables.bits_per_byte_column(experiment.extra),
            Column("gap_closed", "gap closed", num_decimals=2),
            Column("ncr", "NCR"),
        ]
        both["high_protection"] = (best, columns)
    return both
