"""What an experiment leaves behind: results.json, a table, pictures and a page of texts."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ... import Ledger
from ...durable_files import write_durably
from ...environment import environment_record
from ..copying.metrics import METRICS
from ..figures import curves
from ..figures.curves import BudgetTrajectory, LossCurve
from ..figures.style import Pictures, Role, drawn
from ..figures.trade_off import TradeOffPoint, plot_trade_off
from ..report import tables
from ..report.side_by_side import Generation, SideBySideRecord, side_by_side_page
from ..report.tables import Column
from .experiment import RISKY, SAFE, Experiment
from .generations import read_generations
from .summary import VERBATIM, copy_probabilities, recommended, summarize

ALONE: dict[str, tuple[str, Role]] = {SAFE: ("safe", "safe"), RISKY: ("risky", "risky")}
"""Label and role of the settings that are one model alone."""
DIVERGENCES = "divergences.jsonl"
"""A ledger that anchored divergences wrote."""
_TITLE = "Anchored Decoding: the same prompt at every budget"


def write_results(experiment: Experiment, about: dict[str, Any]) -> None:
    """results.json, table.md, the pictures and side_by_side.html.

    about: what the caller adds to results.json: a schema, its settings, how the models were made.
    """
    summaries = summarize(experiment)
    results = {
        **about,
        "environment": environment_record(),
        "metric_set": experiment.copying.metric_set,
        "rows": [summary.as_json() for summary in summaries],
        "recommended": recommended(summaries).setting.name,
        "questions": experiment.read_rows("questions"),
        "examples": experiment.read_rows("copying"),
        "utility": experiment.read_rows("utility"),
        "trajectories": [asdict(each) for each in trajectories(experiment)],
    }
    folder, columns = experiment.folder, result_columns(experiment)
    rows = [summary.as_row() for summary in summaries]
    write_durably(folder / "results.json", json.dumps(results, indent=1) + "\n")
    write_durably(folder / "table.md", tables.markdown_table(rows, columns) + "\n")
    draw_pictures(folder, extra=experiment.extra)
    write_side_by_side(experiment, title=_TITLE)


def terminal_report(experiment: Experiment, findings: Sequence[object]) -> str:
    """What the terminal shows at the end: the table, the findings, answers to questions."""
    rows = [summary.as_row() for summary in summarize(experiment)]
    lines = [tables.terminal_table(rows, result_columns(experiment)), "", *map(str, findings), ""]
    for row in experiment.read_rows("questions"):
        lines.append(f"lm-eval {row['task']}: {row['setting']} accuracy {row['acc']:.3f}")
    return "\n".join(lines)


def result_columns(experiment: Experiment) -> list[Column]:
    """The paper's order: copying, then utility; budgets last."""
    return [
        tables.SETTING_COLUMN,
        *tables.COPYING_COLUMNS,
        *([tables.RECITED_COLUMN] if experiment.has_rows(VERBATIM) else []),
        *map(tables.bits_per_byte_column, experiment.held_out),
        *tables.LAST_COLUMNS,
    ]


def trajectories(experiment: Experiment) -> Iterator[BudgetTrajectory]:
    """One generation of the smallest, a middle and the largest budget, as many as there are."""
    sweep = experiment.budgets
    places = sorted({0, len(sweep) // 2, len(sweep) - 1}) if sweep else []
    for setting in (sweep[place] for place in places):
        rows = read_generations(experiment, setting)
        # The first that went on to its length, if there is one.
        row = next((row for row in rows if row["finish_reason"] == "length"), rows[0])
        ledger = Ledger.load(experiment.folder / row["ledger"])
        yield BudgetTrajectory.of(f"{setting.name}, {row['work']}", ledger)


def write_side_by_side(experiment: Experiment, *, title: str) -> None:
    """side_by_side.html: the first seed's generations of every work, one column a setting."""
    page = side_by_side_page(_side_by_side(experiment), title=title)
    write_durably(experiment.folder / "side_by_side.html", page)


def _side_by_side(experiment: Experiment) -> list[SideBySideRecord]:
    copied = {
        (row["setting"], row["work"], row["seed"]): row["copied_characters"]
        for row in experiment.read_rows("copying")
    }
    columns: dict[str, list[Generation]] = {}
    for setting in experiment.settings:
        rows = read_generations(experiment, setting)
        for row, chance in zip(rows, copy_probabilities(experiment, setting), strict=True):
            if row["seed"] == experiment.seeds[0]:
                has_budget = setting.name != RISKY
                generation = Generation(
                    label=setting.name,
                    pieces=row["pieces"],
                    copied_spans=copied[setting.name, row["work"], row["seed"]],
                    spent=row["spent"] if has_budget else None,
                    bound=row["bound"] if has_budget else None,
                    copy_probability=chance,
                    finish_reason=row["finish_reason"],
                )
                columns.setdefault(row["work"], []).append(generation)
    return [
        SideBySideRecord(
            title=prompt.title,
            prompt=prompt.prompt,
            reference=prompt.reference,
            columns=columns[prompt.id],
        )
        for prompt in experiment.prompts
    ]


def draw_pictures(folder: Path, *, extra: str) -> list[Path]:
    """The pictures of what is recorded in `folder`, written beside it; their paths.

    extra: the held-out set whose bits per byte are drawn.
    Raises FileNotFoundError without a results.json.
    """
    return drawn(folder, _pictures(folder, extra))


def _pictures(folder: Path, extra: str) -> Pictures:
    """By name; without those whose figures the run did not record."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    symbol = "byte" if results["settings"].get("safe_vocab_size") else "token"
    pictures: Pictures = {
        "trade_off": lambda path: plot_trade_off(
            [trade_off_point(row, extra) for row in results["rows"]],
            path,
            utility_name=f"held-out {extra}",
            symbol=symbol,
            num_seeds=len(results["settings"]["seeds"]),
        )
    }
    if "trajectories" in results:
        trajectories = [BudgetTrajectory(**trajectory) for trajectory in results["trajectories"]]
        pictures["budgets"] = lambda path: curves.plot_budget_trajectories(
            trajectories, path, symbol=symbol
        )
    if "losses" in results:
        losses = [LossCurve(**curve) for curve in results["losses"]]
        pictures["losses"] = lambda path: curves.plot_loss_curves(losses, path)
    if (folder / DIVERGENCES).exists():
        ledger = Ledger.load(folder / DIVERGENCES)
        pictures["divergences"] = lambda path: curves.plot_divergences(ledger, path)
    return pictures


def trade_off_point(row: dict[str, Any], extra: str) -> TradeOffPoint:
    """A row of results.json as a point; what is not defined there is nan."""
    label, role = ALONE.get(row["setting"], (row["setting"], "anchored"))
    ncr = {name: math.nan if each is None else each for name, each in row["ncr"].items()}
    return TradeOffPoint(
        label=label,
        role=role,
        protection=ncr["mean"],  # JSON has no nan: what is not defined is recorded as null
        num_metrics=row["ncr"].get("num_metrics", len(METRICS)),  # older results are over all
        utility=row[f"bits_per_byte/{extra}"],
        protection_std=ncr["std"],
    )
