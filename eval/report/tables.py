"""Tables of results, for a terminal and as Markdown."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ... import text_tables
from ..copying.metrics import METRICS
from ..copying.ncr import NcrStatistics
from ..statistics import SeedStatistics

Cell = str | int | float | SeedStatistics | NcrStatistics | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Which entry of a row is shown, under which title and with how many decimals."""

    key: str
    title: str
    num_decimals: int = 3


SETTING_COLUMN: Final = Column(key="setting", title="setting")
COPYING_COLUMNS: Final = (
    Column(key="rouge1_ge_tau", title="ROUGE-1", num_decimals=3),
    Column(key="rougeL_ge_tau", title="ROUGE-L", num_decimals=3),
    Column(key="word_lcs", title="word LCS", num_decimals=2),
    Column(key="char_lcs", title="char LCS", num_decimals=1),
    Column(key="word_acs", title="ACS", num_decimals=2),
    Column(key="minhash", title="MinHash", num_decimals=3),
    Column(key="ncr", title="NCR", num_decimals=3),
)


def bits_per_byte_column(held_out_set: str) -> Column:
    """Column of the rows' entry "bits_per_byte/NAME" for the held-out set NAME."""
    return Column(key=f"bits_per_byte/{held_out_set}", title=f"bpb {held_out_set}")


def terminal_table(rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column]) -> str:
    """Aligned plain text, one line a row, the first column to the left and the others to the right.

    rows: a cell may be a text, a number, `SeedStatistics` (shown as "mean (std)"; the mean alone
    for one seed), `NcrStatistics` (the same, with "[4 of 6]" where it is not over all metrics) or
    None (shown as "-", as are nan and a missing entry).
    Raises: ValueError if there are no columns.
    """
    head, *lines = _cells(rows, columns)
    return "\n".join([text_tables.aligned(head, lines), *_notes(rows, columns)])


def markdown_table(rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column]) -> str:
    """The table of `terminal_table` as Markdown; a "|" in a cell is escaped."""
    head, *lines = _cells(rows, columns)
    table = text_tables.markdown(head, lines, numbers=True)
    return "\n".join([table, *("\n" + note for note in _notes(rows, columns))])


def _cells(rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column]) -> list[list[str]]:
    if not columns:
        raise ValueError("a table needs at least one column, got none")
    head = [column.title for column in columns]
    return [head] + [[_shown(row.get(column.key), column) for column in columns] for row in rows]


def _shown(cell: Cell, column: Column) -> str:
    if isinstance(cell, SeedStatistics | NcrStatistics):
        mean = _shown(cell.mean, column)
        spread = "" if math.isnan(cell.std) else f" ({cell.std:.{column.num_decimals}f})"
        return mean + spread + (cell.scope if isinstance(cell, NcrStatistics) else "")
    if isinstance(cell, float):
        return "-" if math.isnan(cell) else f"{cell:.{column.num_decimals}f}"
    return "-" if cell is None else str(cell)


def _notes(rows: Sequence[Mapping[str, Cell]], columns: Sequence[Column]) -> list[str]:
    cells = [row.get(column.key) for row in rows for column in columns]
    statistics = [cell for cell in cells if isinstance(cell, SeedStatistics | NcrStatistics)]
    notes = []
    if num_seeds := {cell.num_seeds for cell in statistics} - {1}:
        seeds = " or ".join(str(number) for number in sorted(num_seeds))
        notes.append(f"mean (standard deviation) over {seeds} seeds")
    if any(cell.scope for cell in statistics if isinstance(cell, NcrStatistics)):
        notes.append(f"[n of {len(METRICS)}]: over metrics in which the risky model copies more")
    return notes
