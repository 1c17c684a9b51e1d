"""Pictures of an experiment's recorded results."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ... import Ledger
from ..copying.metrics import METRICS
from ..figures.curves import BudgetTrajectory, LossCurve, plot_budget_trajectories, plot_loss_curves
from ..figures.divergences import plot_divergences
from ..figures.style import Role
from ..figures.trade_off import TradeOffPoint, plot_trade_off
from .experiment import RISKY, SAFE

SUFFIXES = (".png", ".svg")
ALONE: dict[str, tuple[str, Role]] = {SAFE: ("safe", "safe"), RISKY: ("risky", "risky")}
"""Label and role of the settings that are one model alone."""
DIVERGENCES = "divergences.jsonl"
"""A ledger that anchored divergences wrote."""

Draw = Callable[[Path], None]


def draw_pictures(folder: Path, *, extra: str) -> list[Path]:
    """The pictures of what is recorded in `folder`, written beside it; their paths.

    extra: the held-out set whose bits per byte are drawn.
    Raises FileNotFoundError without a results.json.
    """
    paths = []
    for name, draw in _pictures(folder, extra).items():
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            draw(path)
            paths.append(path)
    return paths


def _pictures(folder: Path, extra: str) -> dict[str, Draw]:
    """By name; without those whose figures the run did not record."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    pictures: dict[str, Draw] = {"trade_off": lambda path: _draw_trade_off(results, path, extra)}
    if "trajectories" in results:
        pictures["budgets"] = lambda path: _draw_budgets(results, path)
    if "losses" in results:
        pictures["losses"] = lambda path: _draw_losses(results, path)
    if (folder / DIVERGENCES).exists():
        ledger = Ledger.load(folder / DIVERGENCES)
        pictures["divergences"] = lambda path: plot_divergences(ledger, path)
    return pictures


def _draw_trade_off(results: dict[str, Any], path: Path, extra: str) -> None:
    plot_trade_off(
        [_point(row, extra) for row in results["rows"]],
        path,
        utility_name=f"held-out {extra}",
        symbol=_symbol(results),
        num_seeds=len(results["settings"]["seeds"]),
    )


def _point(row: dict[str, Any], extra: str) -> TradeOffPoint:
    label, role = ALONE.get(row["setting"], (row["setting"], "anchored"))
    return TradeOffPoint(
        label=label,
        role=role,
        ncr=_number(row["ncr"]["mean"]),
        num_metrics=row["ncr"].get("num_metrics", len(METRICS)),  # older results are over all
        bits_per_byte=row[f"bits_per_byte/{extra}"],
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
