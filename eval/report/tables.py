"""Tables of results, for a terminal, as Markdown, HTML and, for the paper's, LaTeX."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ... import text_tables
from ..copying.metrics import INSTALLED, METRICS
from ..copying.ncr import NcrStatistics
from ..statistics import SeedStatistics

Cell = str | int | float | SeedStatistics | NcrStatistics | None
Row = Mapping[str, Cell]
"""Cells by the keys of columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """Which entry of a row is shown, under which title and with how many decimals."""

    key: str
    title: str
    num_decimals: int = 3


BITS: Final = "bits_per_byte/"
"""Before the name of a held-out set in rows of results."""
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
RECITED_COLUMN: Final = Column(key="recited", title="recited, at most")
"""The largest probability that bounds leave to texts that begin with their references."""


def result_columns(rows: Sequence[Row], judged: Sequence[Column] = ()) -> list[Column]:
    """The columns of a run's results in the paper's order: copying, then utility, budgets last.

    rows: by "bits_per_byte/SET" the held-out sets, by "accuracy/TASK" the questions, whose debt is
    not charged. judged: columns of judges. "failed" counts the generations that the other figures
    leave out; it and what bounds allow of reciting are shown where a row has some.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    tasks = [name for name in names if name.startswith("accuracy/")]
    return [
        SETTING_COLUMN,
        *copying_columns(names),
        *([RECITED_COLUMN] if any(row.get("recited") is not None for row in rows) else []),
        *(bits_per_byte_column(n.removeprefix(BITS)) for n in names if n.startswith(BITS)),
        *(Column(key=name, title=f"acc {name.partition('/')[2]}") for name in tasks),
        *judged,
        Column(key="gap_closed", title="gap closed", num_decimals=2),
        Column(key="spent", title="spent", num_decimals=1),
        Column(key="bound", title="bound", num_decimals=1),
        *([Column(key="failed", title="failed")] if any(row.get("failed") for row in rows) else []),
    ]


def copying_columns(names: Iterable[str]) -> list[Column]:
    """The six metrics and NCR, then the installed metrics among the names of recorded figures."""
    installed = [name for name in dict.fromkeys(names) if name.startswith(INSTALLED)]
    titled = (Column(key=name, title=name.removeprefix(INSTALLED)) for name in installed)
    return [*COPYING_COLUMNS, *titled]


def bits_per_byte_column(held_out_set: str) -> Column:
    """Column of the rows' entry "bits_per_byte/NAME" for the held-out set NAME."""
    return Column(key=f"{BITS}{held_out_set}", title=f"bpb {held_out_set}")


def terminal_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Aligned plain text, one line a row, the first column to the left and the others to the right.

    rows: a cell may be a text, a number, `SeedStatistics` (shown as "mean (std)"; the mean alone
    for one seed), `NcrStatistics` (the same, with "[4 of 6]" where it is not over all metrics and
    "{30 of 40}" where not over all texts) or None (shown as "-", as are nan and a missing entry).
    """
    head, *lines = _cells(rows, columns)
    return "\n".join([text_tables.aligned(head, lines), *_notes(rows, columns)])


def markdown_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """The table of `terminal_table` as Markdown; a "|" in a cell is escaped."""
    return markdown_table_of_parts([("", rows)], columns)


def html_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """The same as HTML, every cell escaped."""
    head, *lines = _cells(rows, columns)
    notes = (f'<p class="facts">{note}</p>' for note in _notes(rows, columns))
    return "\n".join([f'<div class="wide">{text_tables.html(head, lines)}</div>', *notes])


Parts = Sequence[tuple[str, Sequence[Row]]]
"""Titles of parts of a table, with their rows."""


def markdown_table_of_parts(parts: Parts, columns: Sequence[Column]) -> str:
    """As `markdown_table`, the title of each part in italics in a row before its own."""
    head, shown = [column.title for column in columns], []
    for title, rows in parts:
        shown += [[f"*{title}*", *[""] * (len(columns) - 1)]] if title else []
        shown += _cells(rows, columns)[1:]
    table = text_tables.markdown(head, shown, numbers=True)
    notes = _notes([row for _, rows in parts for row in rows], columns)
    return "\n".join([table, *("\n" + note for note in notes)])


def latex_table_of_parts(parts: Parts, columns: Sequence[Column]) -> str:
    """The same table as a tabular of booktabs, what brackets mean in comments above it."""
    head = [column.title for column in columns]
    shown = [(title, _cells(rows, columns)[1:]) for title, rows in parts]
    notes = _notes([row for _, rows in parts for row in rows], columns)
    return "\n".join([*(f"% {note}" for note in notes), text_tables.latex(head, shown)])


def _cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
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


def _notes(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    cells = [row.get(column.key) for row in rows for column in columns]
    statistics = [cell for cell in cells if isinstance(cell, SeedStatistics | NcrStatistics)]
    notes = []
    if num_seeds := {cell.num_seeds for cell in statistics} - {0, 1}:
        seeds = " or ".join(str(number) for number in sorted(num_seeds))
        notes.append(f"mean (standard deviation) over {seeds} seeds")
    ncr = [cell for cell in statistics if isinstance(cell, NcrStatistics)]
    if any(cell.scope.removesuffix(cell.texts_scope) for cell in ncr):
        notes.append(f"[n of {len(METRICS)}]: over metrics in which the risky model copies more")
    if any(cell.texts_scope for cell in ncr):
        notes.append("{n of N}: over the texts that the setting and both models alone have")
    return notes
