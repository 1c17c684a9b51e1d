"""Results of an experiment: results.json, tables, pictures and a page."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ... import Ledger
from ...decode.ledger import ledger_parts
from ...durable_files import write_durably
from ..analysis.recorded_run import RecordedRun
from ..analysis.run_report import write_report
from ..analysis.trade_offs import bits_in_resamples, ncr_in_resamples, trade_off_points
from ..copying.literal import high_protection
from ..copying.metrics import METRIC_SET, metric_packages
from ..figures.curves import BudgetTrajectory, plot_budget_trajectories, plot_divergences
from ..figures.style import Pictures, drawn
from ..figures.trade_off import Scale, plot_trade_off
from ..recorded_texts import RISKY, SAFE, grouped, write_json
from ..report import tables
from ..report.tables import BITS, Column
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
PATHS = ("inputs", "placement", "folders")
"""Settings of a machine's files and GPUs, which decide no result."""
PROVED = Scale("log10 of the bound on reciting the worst work", lower_is_better=True)
PAGE_TEXTS = 4
"""Prompts whose texts the first page shows: a page of 25 settings then has 3 MB."""


def write_results(
    experiment: Experiment, rows: Sequence[dict[str, Any]], about: dict[str, Any]
) -> None:
    """Write results.json, and the pictures and the page that follow from it. rows: of `summarize`.
    about: the caller's entries of results.json."""
    examples = [
        {name: value for name, value in row.items() if name not in SPANS}
        for row in experiment.copying
    ]
    results = {**about, "metric_set": METRIC_SET, **metric_packages(), "rows": rows}
    results |= {"examples": examples, "utility": experiment.read_rows("utility")}
    folder = experiment.folder
    write_json(folder / "results.json", results, indent=None)
    draw_pictures(folder)
    write_report(RecordedRun(folder), folder, num_texts=PAGE_TEXTS)


def write_budget_results(
    experiment: Experiment, rows: Sequence[dict[str, Any]], about: dict[str, Any]
) -> None:
    """Write the results of a sweep of budgets, with table.md and the recommended budget. rows,
    about: as of `write_results`."""
    tables.write_table(experiment.folder / "table.md", rows, tables.result_columns(rows))
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
    """Draw the pictures of a run into its folder; returns their paths. Raises FileNotFoundError
    without a results.json."""
    if not (folder / "results.json").exists():
        raise FileNotFoundError(f"there is no results.json in {folder}")
    run = RecordedRun(folder)
    names, settings = list(run.results["rows"][0]), run.results["settings"]
    symbol, pictures, proved = settings.get("level", "token"), Pictures(), Pictures()
    # 1. NCR, and what is proved, against bits per byte.
    if bits := [name for name in names if name.startswith(BITS)]:
        utility = BITS + settings["utility"] if "utility" in settings else bits[-1]
        scale = Scale.bits_per_byte(f"held-out {utility.removeprefix(BITS)}")
        pictures |= _against(run, utility, scale, symbol)
        proved = _proved(run, utility, scale, "proved")
    # 2. The methods, and what is proved, against the answers to questions.
    for name in (name for name in names if name.startswith("accuracy/")):
        task = name.partition("/")[2]
        scale = Scale(f"questions answered right, {task}")
        against = _against(run, name, scale, symbol)
        if picture := against.get("methods") or against.get("trade_off"):
            pictures[f"accuracy_{task}"] = picture
        pictures |= _proved(run, name, scale, f"proved_{task}")
    pictures |= proved
    # 3. Budgets and divergences, step by step, as far as they are recorded.
    if budgets := [BudgetTrajectory(**each) for each in run.results.get("trajectories", [])]:
        pictures["budgets"] = partial(plot_budget_trajectories, budgets, symbol=symbol)
    if (path := folder / DIVERGENCES).exists():
        ledgers = [Ledger.load(path, part) for part in ledger_parts(path)]
        pictures["divergences"] = partial(plot_divergences, ledgers)
    return drawn(folder, pictures)


def _proved(run: RecordedRun, utility: str, scale: Scale, name: str) -> Pictures:
    """The picture of what bounds prove about recitals against one figure of the rows."""
    rows = [row for row in run.rows if row["setting"] not in (SAFE, RISKY)]
    figures = [{row["setting"]: row.get(key) for row in rows} for key in ("log10_recited", utility)]
    points = [
        point
        for point in trade_off_points(run, *figures)
        if math.isfinite(point.protection) and math.isfinite(point.utility)
    ]
    title = "What is proved against what is kept"
    draw = partial(plot_trade_off, {"": points}, title=title, protection=PROVED, utility=scale)
    return {name: draw} if points else {}


def _against(run: RecordedRun, utility: str, scale: Scale, symbol: str) -> Pictures:
    """The pictures of NCR against one figure of the rows."""
    figures = [{row["setting"]: row.get(name) for row in run.rows} for name in ("ncr", utility)]
    resampled = ncr_in_resamples(run), bits_in_resamples(run, utility)
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
            pictures[name] = partial(plot_trade_off, points, title=title, utility=scale)
    return pictures


def _about_methods(sweep: Sweep) -> dict[str, dict[str, Any]]:
    """Section, figures and rule of each method by label; the two models alone first."""
    alone = {"section": SECTIONS[0], "figures": ["methods"], "is_swept": False}
    about = {SAFE: {**alone, "rule": "safe_only"}, RISKY: {**alone, "rule": "risky_only"}}
    names = (*alone, "rule")
    return about | {each.label: {n: getattr(each, n) for n in names} for each in sweep.methods}


def write_sweep_results(experiment: Experiment, sweep: Sweep) -> str:
    """Write results.json; table and high_protection as .md and .tex; pictures; report.html. All of
    it follows from the records in the folder. Returns both tables as the terminal shows them."""
    rows, extra = summarize(experiment), experiment.extra
    shown: dict[str, tuple[list[dict[str, Any]], list[Column]]] = {
        "table": (rows, tables.result_columns(rows))
    }
    chosen: dict[str, dict[str, Any] | None] = {}
    if extra:  # the best setting of each method at high protection, an empty row if none protects
        judged = [{**row, "utility": -row[f"{BITS}{extra}"]} for row in rows]
        chosen = high_protection(judged, utility="utility")
        shown["high_protection"] = (
            [{"method": name} | (row or {}) for name, row in chosen.items()],
            [
                *tables.columns_of("method", "setting"),
                tables.bits_per_byte_column(extra),
                *tables.columns_of(("gap_closed", "gap closed", 2), ("ncr", "NCR")),
            ],
        )
    methods = _about_methods(sweep)
    for name, (some, columns) in shown.items():
        by_section = grouped(some, lambda row: str(methods[row["method"]]["section"]))
        parts = [(part, by_section[part]) for part in SECTIONS if part in by_section]
        for suffix, table in (
            ("md", tables.markdown_table_of_parts(parts, columns)),
            ("tex", tables.latex_table_of_parts(parts, columns)),
        ):
            write_durably(experiment.folder / f"{name}.{suffix}", table + "\n")
    settings = asdict(sweep) | {"utility": sweep.utility_set}
    protected = {method: row and row["setting"] for method, row in chosen.items()}
    about_run = {
        "schema": "anchored-sweep/1",
        "settings": {name: value for name, value in settings.items() if name not in PATHS},
        "methods": methods,
        "high_protection": protected,
    }
    write_results(experiment, rows, about_run)
    return "\n\nBest utility at NCR >= 0.75:\n".join(
        tables.terminal_table(*table) for table in shown.values()
    )
