"""What an analysis gives: a table, a picture and how to read both."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..figures.series import Series
from ..report.tables import Cell, Column

Row = Mapping[str, Cell]


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """A table of recorded figures, and the picture of them."""

    title: str
    note: str
    """What the figures are of, and how they are read."""
    columns: Sequence[Column]
    rows: Sequence[Row]
    draw: Callable[[Path], None] | None
    """Writes the picture into a .png, .svg or .pdf file; None where there is nothing to draw."""


def figure_of(cell: Cell) -> float:
    """A number, statistics by their mean; nan for anything else."""
    mean = getattr(cell, "mean", cell)
    return float(mean) if isinstance(mean, int | float) else math.nan


def over_k(rows: Sequence[Row], key: str) -> Series:
    """A figure of each row that has it, against its "k", ascending."""
    points = sorted((figure_of(row["k"]), figure_of(row[key])) for row in rows)
    known = [point for point in points if not any(map(math.isnan, point))]
    return Series([k for k, _ in known], [figure for _, figure in known])
