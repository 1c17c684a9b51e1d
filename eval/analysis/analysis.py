"""What an analysis gives: a table, a picture and how to read both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

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
