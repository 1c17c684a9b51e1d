"""Every analysis by name, and a run through all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from ...durable_files import write_durably
from ..figures.style import drawn
from ..report.judgements import JUDGES
from ..report.tables import csv_table, latex_table_of_parts, markdown_table
from . import budgets, copied_spans, divergences, evaluated
from .analysis import Analysis
from .recorded_run import NotMeasured, RecordedRun

ANALYSES: Final[dict[str, Callable[[RecordedRun], Analysis]]] = {
    "copying_distribution": evaluated.copying_distribution,
    "character_overlap": evaluated.character_overlap,
    **{judge.replace("-", "_"): partial(evaluated.judgement, judge) for judge in JUDGES},
    "precision_by_group": evaluated.precision_by_group,
    "step_divergences": divergences.step_divergences,
    "prefix_ratios": divergences.prefix_ratios,
    "debt_deciles": copied_spans.debt_deciles,
    "start_positions": copied_spans.start_positions,
    "trajectories": budgets.budget_trajectories,
    "acceptance": budgets.acceptance,
    "spend_and_copying": copied_spans.spend_and_copying,
}


@dataclass(frozen=True, slots=True)
class Analyses:
    """What could be analysed, and why the rest could not, by name."""

    found: dict[str, Analysis] = field(default_factory=dict)
    not_measured: dict[str, str] = field(default_factory=dict)


def analyses(run: RecordedRun) -> Analyses:
    """All of them on one run. Raises: ValueError for damaged records."""
    result = Analyses()
    for name, analyse in ANALYSES.items():
        try:
            result.found[name] = analyse(run)
        except NotMeasured as reason:
            result.not_measured[name] = str(reason)
    return result


def write_analyses(found: dict[str, Analysis], folder: Path) -> None:
    """NAME.md, .tex, .csv, .png and .svg of each."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, own in found.items():
        table = f"# {own.title}\n\n{own.note}\n\n{markdown_table(own.rows, own.columns)}\n"
        write_durably(folder / f"{name}.md", table)
        latex = latex_table_of_parts([("", own.rows)], own.columns)
        write_durably(folder / f"{name}.tex", latex + "\n")
        write_durably(folder / f"{name}.csv", csv_table(own.rows, own.columns))
    drawn(folder, {name: own.draw for name, own in found.items() if own.draw is not None})
