"""Pictures of recorded results: python -m anchored.tools.quickstart.pictures FOLDER"""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from anchored import Ledger
from anchored.eval.copying import METRICS
from anchored.eval.divergence_plot import plot_divergences
from anchored.eval.plots import (
    BudgetTrajectory,
    LossCurve,
    Role,
    TradeOffPoint,
    plot_budget_trajectories,
    plot_loss_curves,
    plot_trade_off,
)

from .summary import EXTRA

SUFFIXES = (".png", ".svg")
ALONE: dict[str, tuple[str, Role]] = {"p_s": ("safe", "safe"), "p_r": ("risky", "risky")}
"""Label and role of the settings that are one model alone."""
DIVERGENCES = "divergences.jsonl"
"""A ledger that anchored divergences wrote."""

Draw = Callable[[Path], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class PicturesConfig:
    """Draws every picture anew, as .png and .svg, from the figures that lie in the folder."""

    folder: tyro.conf.Positional[Path]
    """A quickstart's output, or a copy of its results.json and of a ledger divergences.jsonl."""


def run(config: PicturesConfig) -> int:
    """Draw and print the files; returns the exit status."""
    print(*draw_pictures(config.folder), sep="\n")
    return 0


def draw_pictures(folder: Path) -> list[Path]:
    """The pictures of what is recorded in `folder`, written beside it; their paths.

    Raises FileNotFoundError without a results.json.
    """
    paths = []
    for name, draw in _pictures(folder).items():
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            draw(path)
            paths.append(path)
    return paths


def _pictures(folder: Path) -> dict[str, Draw]:
    """By name; without those whose figures the run did not record."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    pictures: dict[str, Draw] = {"trade_off": lambda path: _draw_trade_off(results, path)}
    if "trajectories" in results:
        pictures["budgets"] = lambda path: _draw_budgets(results, path)
    if "losses" in results:
        pictures["losses"] = lambda path: _draw_losses(results, path)
    if (folder / DIVERGENCES).exists():
        ledger = Ledger.load(folder / DIVERGENCES)
        pictures["divergences"] = lambda path: plot_divergences(ledger, path)
    return pictures


def _draw_trade_off(results: dict[str, Any], path: Path) -> None:
    plot_trade_off(
        [_point(row) for row in results["rows"]],
        path,
        utility_name=f"held-out {EXTRA}",
        symbol=_symbol(results),
        num_seeds=len(results["settings"]["seeds"]),
    )


def _point(row: dict[str, Any]) -> TradeOffPoint:
    label, role = ALONE.get(row["setting"], (row["setting"], "anchored"))
    return TradeOffPoint(
        label=label,
        role=role,
        ncr=_number(row["ncr"]["mean"]),
        num_metrics=row["ncr"].get("num_metrics", len(METRICS)),  # older results are over all
        bits_per_byte=row[f"bits_per_byte/{EXTRA}"],
        ncr_std=_number(row["ncr"]["std"]),
    )


def _number(recorded: float | None) -> float:
    """JSON has no nan: what is not defined is recorded as null."""
    return math.nan if recorded is None else recorded


def _draw_budgets(results: dict[str, Any], path: Path) -> None:
    trajectories = [BudgetTrajectory(**trajectory) for trajectory in results["trajectories"]]
    plot_budget_trajectories(trajectories, path, symbol=_symbol(results))


def _draw_losses(results: dict[str, Any], path: Path) -> None:
    plot_loss_curves([LossCurve(**curve) for curve in results["losses"]], path)


def _symbol(results: dict[str, Any]) -> str:
    return "byte" if results["settings"].get("safe_vocab_size") else "token"


if __name__ == "__main__":
    sys.exit(run(tyro.cli(PicturesConfig, description=__doc__)))
