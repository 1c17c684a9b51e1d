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


def _pictures(folder: Path, extra: str) -> dict[str, Callable[[Path], None]]:
    """By name; without those whose figures the run did not record."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    symbol = "byte" if results["settings"].get("safe_vocab_size") else "token"
    pictures: dict[str, Callable[[Path], None]] = {
        "trade_off": lambda path: plot_trade_off(
            [_point(row, extra) for row in results["rows"]],
            path,
            utility_name=f"held-out {extra}",
            symbol=symbol,
            num_seeds=len(results["settings"]["seeds"]),
        )
    }
    if "trajectories" in results:
        trajectories = [BudgetTrajectory(**trajectory) for trajectory in results["trajectories"]]
        pictures["budgets"] = lambda path: plot_budget_trajectories(
            trajectories, path, symbol=symbol
        )
    if "losses" in results:
        curves = [LossCurve(**curve) for curve in results["losses"]]
        pictures["losses"] = lambda path: plot_loss_curves(curves, path)
    if (folder / DIVERGENCES).exists():
        ledger = Ledger.load(folder / DIVERGENCES)
        pictures["divergences"] = lambda path: plot_divergences(ledger, path)
    return pictures


def _point(row: dict[str, Any], extra: str) -> TradeOffPoint:
    label, role = ALONE.get(row["setting"], (row["setting"], "anchored"))
    ncr = {name: math.nan if each is None else each for name, each in row["ncr"].items()}
    return TradeOffPoint(
        label=label,
        role=role,
        ncr=ncr["mean"],  # JSON has no nan: what is not defined is recorded as null
        num_metrics=row["ncr"].get("num_metrics", len(METRICS)),  # older results are over all
        bits_per_byte=row[f"bits_per_byte/{extra}"],
        ncr_std=ncr["std"],
    )
