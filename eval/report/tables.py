"""Tables of results, for a terminal, as Markdown, HTML and, for the paper's, LaTeX."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any, Final

from ... import text_tables
from ...durable_files import write_durably
from ..copying.literal import ncr_scope
from ..copying.metrics import INSTALLED, METRICS
from ..statistics import mean_of, std_of

Cell = str | int | float | Mapping[str, Any] | None
"""A mapping is statistics over seeds."""
Row = Mapping[str, Cell]
"""Cells by the keys of columns."""


@dataclass(frozen=True, slots=True)
class Column:
    """An entry of rows that is shown, with its title and number of decimals."""

    key: str
    title: str = ""
    """The title; the key by default."""
    num_decimals: int = 3
    is_bound: bool = False
    """Whether figures are the largest chances of something, and shown by `at_most`."""


def columns_of(*columns: str | tuple[str, str] | tuple[str, str, int]) -> list[Column]:
    """Columns from their keys, or keys and titles, or both and numbers of decimals."""
    return [Column(each) if isinstance(each, str) else Column(*each) for each in columns]


BITS: Final = "bits_per_byte/"
"""Prefix of the name of a held-out set in rows of results."""
SETTING_COLUMN: Final = Column("setting")
COPYING_COLUMNS: Final = columns_of(
    *(("rouge1_ge_tau", "ROUGE-1"), ("rougeL_ge_tau", "ROUGE-L"), ("word_lcs", "word LCS", 2)),
    *(("char_lcs", "char LCS", 1), ("word_acs", "ACS", 2), ("minhash", "MinHash"), ("ncr", "NCR")),
)
RECITED_COLUMN: Final = Column("recited", "recited, at most", is_bound=True)
"""The largest probability that the bounds leave to any text to begin with its reference."""
LOG10_MEAN_COLUMN: Final = Column("log10_recited_mean", "log10 of it, mean", num_decimals=1)
"""A mean over texts of the logarithm of each one's bound."""


def result_columns(rows: Sequence[Row], judged: Sequence[Column] = ()) -> list[Column]:
    """The columns of a run's results in the paper's order: copying, then utility, budgets last.
    rows: with "bits_per_byte/SET" of held-out sets and "accuracy/TASK" of questions, whose debt is
    not charged. judged: columns of judges. "failed" counts the generations that the other figures
    leave out; it and "recited" are shown if a row has them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    tasks = [name for name in names if name.startswith("accuracy/")]
    proved = (RECITED_COLUMN, LOG10_MEAN_COLUMN)
    return [
        SETTING_COLUMN,
        *copying_columns(names),
        *(each for each in proved if any(row.get(each.key) is not None for row in rows)),
        *(bits_per_byte_column(n.removeprefix(BITS)) for n in names if n.startswith(BITS)),
        *(Column(name, f"accuracy, {name.partition('/')[2]}") for name in tasks),
        *judged,
        *columns_of(("gap_closed", "gap closed", 2), ("spent", "", 1), ("bound", "", 1)),
        *(columns_of("failed") if any(row.get("failed") for row in rows) else []),
    ]


def copying_columns(names: Iterable[str]) -> list[Column]:
    """The six metrics and NCR, then the installed metrics among the names of recorded figures."""
    installed = [name for name in dict.fromkeys(names) if name.startswith(INSTALLED)]
    titled = (Column(name, name.removeprefix(INSTALLED)) for name in installed)
    return [*COPYING_COLUMNS, *titled]


def bits_per_byte_column(held_out_set: str) -> Column:
    """The column of a held-out set."""
    return Column(f"{BITS}{held_out_set}", f"bits per byte, {held_out_set}")


def terminal_table(rows: Sequence[Row], columns: Sequence[Column]) -> str:
    """Aligned plain text, one line per row, the first column to the left, others to the right. A
    cell is a text, a number, `SeedStatistics` (shown as "mean (std)"; the mean alone for one seed;
    with the `ncr_scope` of an NCR) or None (shown as "-", as nan and a missing entry are)."""
    head, *lines = _cells(rows, columns)
    return "\n".join([text_tables.aligned(head, lines), *_notes(rows, columns)])


def write_table(
    path: Path, rows: Sequence[Row], columns: Sequence[Column], *, title: str = "", notes: str = ""
) -> str:
    """Write a Markdown file of the table between a title and notes; returns the same with the table
    for the terminal."""
    markdown, shown = (
        "\n\n".join(filter(None, [title, table(rows, columns), notes]))
        for table in (markdown_table, terminal_table)
    )
    write_durably(path, markdown + "\n")
    return shown


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
    """A Markdown table with the title of each part in italics in a row before its rows."""
    head, shown = _cells((), columns)[0], []
    for title, rows in parts:
        shown += [[f"*{title}*", *[""] * (len(columns) - 1)]] if title else []
        shown += _cells(rows, columns)[1:]
    table = text_tables.markdown(head, shown, numbers=True)
    notes = _notes([row for _, rows in parts for row in rows], columns)
    return "\n".join([table, *("\n" + note for note in notes)])


def latex_table_of_parts(parts: Parts, columns: Sequence[Column]) -> str:
    """The same table as a tabular of booktabs, with notes on brackets in comments above it."""
    shown = [(title, _cells(rows, columns)[1:]) for title, rows in parts]
    notes = [f"% {note}" for note in _notes([row for _, rows in parts for row in rows], columns)]
    return "\n".join([*notes, text_tables.latex(_cells((), columns)[0], shown)])


def _cells(rows: Sequence[Row], columns: Sequence[Column]) -> list[list[str]]:
    head = [column.title or column.key for column in columns]
    return [head] + [[_shown(row.get(column.key), column) for column in columns] for row in rows]


def _shown(cell: Cell, column: Column) -> str:
    if isinstance(cell, Mapping):
        spread = "" if math.isnan(std := std_of(cell)) else f" ({_shown(std, column)})"
        return _shown(mean_of(cell), column) + spread + ncr_scope(cell)
    if cell is None or cell != cell:
        return "-"
    if isinstance(cell, float):
        return at_most(cell) if column.is_bound else f"{cell:.{column.num_decimals}f}"
    return str(cell)


def at_most(chance: float) -> str:
    """A bound on a chance in two digits, rounded up, as no more is claimed than is proved: from its
    shortest decimal form, as a float of 0.1 is a little more than that."""
    upward = Context(prec=2, rounding=ROUND_CEILING)
    return f"{upward.create_decimal(repr(chance)).normalize():g}"


def _notes(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    cells = [row.get(column.key) for row in rows for column in columns]
    statistics = [cell for cell in cells if isinstance(cell, Mapping)]
    notes = []
    if num_seeds := {cell.get("num_seeds", 1) for cell in statistics} - {0, 1}:
        seeds = " or ".join(str(number) for number in sorted(num_seeds))
        notes.append(f"mean (standard deviation) over {seeds} seeds")
    scopes = "".join(map(ncr_scope, statistics))
    if "[" in scopes:
        notes.append(f"[n of {len(METRICS)}]: over metrics in which the risky model copies more")
    if "{" in scopes:
        notes.append("{n of N}: over the texts that the setting and both models alone have")
    return notes
