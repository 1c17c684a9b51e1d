"""What an experiment leaves behind: results.json, tables, pictures and a page."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ... import Ledger
from ...decode.ledger import ledger_parts
from ...durable_files import write_durably
from ...environment import environment_record
from ..analysis.recorded_run import RecordedRun
from ..analysis.resamples import bits_in_resamples, ncr_in_resamples
from ..analysis.run_report import Analyses, write_report
from ..analysis.trade_offs import trade_off_points
from ..copying.metrics import METRIC_SET, metric_packages
from ..figures import curves
from ..figures.curves import BudgetTrajectory
from ..figures.style import Pictures, drawn
from ..figures.trade_off import Scale, plot_trade_off
from ..report import tables
from .experiment import Experiment
from .generations import read_generations
from .summary import SettingSummary, recommended, summarize
from .sweep import FIGURES

DIVERGENCES = "divergences.jsonl"
"""Ledgers that anchored verify --divergences wrote."""
SPANS = ("word_lcs_span", "char_lcs_span", "word_acs_spans", "copied_characters")
"""Of the rows of measurements/copying.json, what results.json leaves out."""
PICTURES = {
    "methods": ("Protection and utility of every method, one point a setting", ["methods"]),
    "ablations": ("What each part of Anchored Decoding is worth", ["objective", "debt", "budget"]),
    "debt_window": ("Windows of the prefix debt: 0 is NoDebt, 5 is Anchored", ["debt_window"]),
}
"""Pictures of a sweep: their titles, and the figures that are their panels."""
PAGE_TEXTS = 4
"""Prompts whose texts the first page shows: a page of 25 settings then has 3 MB."""


def write_results(
    experiment: Experiment, summaries: Sequence[SettingSummary], about: dict[str, Any]
) -> None:
    """results.json, and the pictures and the page that follow from it.

    about: what the caller adds to results.json: a schema, its settings, how the models were made.
    """
    results = {
        **about,
        "environment": environment_record(),
        "metric_set": METRIC_SET,
        **metric_packages(),
        "rows": [summary.as_json() for summary in summaries],
        "examples": [
            {name: value for name, value in row.items() if name not in SPANS}
            for row in experiment.read_rows("copying")
        ],
        "utility": experiment.read_rows("utility"),
    }
    folder = experiment.folder
    write_durably(folder / "results.json", json.dumps(results, allow_nan=False) + "\n")
    draw_pictures(folder)
    later = Analyses(not_measured={"analyses": "anchored evaluate makes them"})
    write_report(RecordedRun(folder), later, folder, num_texts=PAGE_TEXTS)


def write_budget_results(experiment: Experiment, about: dict[str, Any]) -> str:
    """The results of a sweep of budgets, with table.md and the budget that is recommended.

    Returns the table as the terminal shows it.
    """
    summaries = summarize(experiment)
    rows = [own.as_row() for own in summaries]
    table = rows, tables.result_columns(rows)
    write_durably(experiment.folder / "table.md", tables.markdown_table(*table) + "\n")
    more = {
        "recommended": recommended(summaries).setting.name,
        "trajectories": [asdict(each) for each in trajectories(experiment)],
    }
    write_results(experiment, summaries, {**about, **more})
    return tables.terminal_table(*table)


def trajectories(experiment: Experiment) -> Iterator[BudgetTrajectory]:
    """One generation of the smallest, a middle and the largest budget, as many as there are."""
    sweep = experiment.budgets
    chosen = sorted({0, len(sweep) // 2, len(sweep) - 1}) if sweep else []
    for setting in (sweep[index] for index in chosen):
        rows = read_generations(experiment, setting)
        if not rows:  # all of them failed
            continue
        # The first that went on to its length, if there is one.
        row = next((row for row in rows if row["finish_reason"] == "length"), rows[0])
        ledger = Ledger.load(experiment.folder / row["ledger"], row["ledger_part"])
        yield BudgetTrajectory.of(f"{setting.name}, {row['id']}", ledger)


def draw_pictures(folder: Path) -> list[Path]:
    """The pictures of what is recorded in `folder`, written beside it; their paths.

    Raises FileNotFoundError without a results.json.
    """
    if not (folder / "results.json").exists():
        raise FileNotFoundError(f"there is no results.json in {folder}")
    run = RecordedRun(folder)
    symbol = run.results["settings"].get("level", "token")
    return drawn(folder, {**_trade_offs(run, symbol), **_curves(run, symbol)})


def _trade_offs(run: RecordedRun, symbol: str) -> Pictures:
    """The pictures of NCR against bits per byte, and of the methods against accuracy; {} where
    neither was measured."""
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
        against = _pictures_of(run, name, Scale(f"accuracy, {task}"), symbol)
        if picture := against.get("methods") or against.get("trade_off"):
            pictures[f"accuracy_{task}"] = picture
    return pictures


def _pictures_of(run: RecordedRun, utility: str, scale: Scale, symbol: str) -> Pictures:
    """The pictures of NCR against one figure of the rows."""
    figures = [{row["setting"]: row.get(name) for row in run.rows} for name in ("ncr", utility)]
    resampled = ncr_in_resamples(run), bits_in_resamples(run, utility)
    draw = partial(plot_trade_off, utility=scale)
    shown = PICTURES
    if "methods" not in run.results:  # of a quickstart: budgets alone
        title = f"Protection and utility, one point a budget (k nats a {symbol})"
        shown = {"trade_off": (title, ["methods"])}
    pictures: Pictures = {}
    for name, (title, panels) in shown.items():
        points = {
            FIGURES[figure]: own
            for figure in panels
            if (own := trade_off_points(run, *figures, figure=figure, resampled=resampled))
        }
        if points:
            pictures[name] = partial(draw, points, title=title)
    return pictures


def _curves(run: RecordedRun, symbol: str) -> Pictures:
    """The pictures of budgets and divergences that the run recorded."""
    pictures: Pictures = {}
    if budgets := [BudgetTrajectory(**own) for own in run.results.get("trajectories", [])]:
        pictures["budgets"] = partial(curves.plot_budget_trajectories, budgets, symbol=symbol)
    if (run.folder / DIVERGENCES).exists():
        path = run.folder / DIVERGENCES
        ledgers = [Ledger.load(path, part) for part in ledger_parts(path)]
        pictures["divergences"] = partial(curves.plot_divergences, ledgers)
    return pictures
