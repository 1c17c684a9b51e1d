"""Rows of tables of what measures and judges recorded: a setting's figures by title, and failures.

The first figure is the judge's own; what has none is counted beside it, never part of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from ..statistics import SeedStatistics
from .tables import Cell, Column

Cells = dict[str, Cell]
Settings = Mapping[str, Any]
"""One of a results file's "settings"."""


def fluency_cells(own: Settings) -> Cells:
    """Mean grade, texts with one, without a word, and without an answer."""
    return {
        "fluency": SeedStatistics.recorded(own["fluency"]),
        "judged": own["num_judged"],
        "empty": own["num_empty"],
        "failed": own["num_failed"],
    }


def factuality_cells(own: Settings) -> Cells:
    """Precision, claims, and what has none."""
    return {
        "macro": SeedStatistics.recorded(own["macro"]),
        "micro": own["micro"],
        "claims/text": own["claims_per_text"],
        "no claims": own["num_without_claims"],
        "unscored": own["num_unscored"],
        "failed": own["num_failed_sentences"] + own["num_failed_claims"],
    }


def win_rate_cells(own: Settings) -> Cells:
    """The rate, its interval, and what has none."""
    low, high = own["interval"] or (None, None)
    return {
        "win rate": own["win_rate"],
        "from": low,
        "to": high,
        "compared": own["num_compared"],
        "inconsistent": own["num_inconsistent"],
        "failed": own["num_failed"],
    }


JUDGES: Final[dict[str, Callable[[Settings], Cells]]] = {
    "fluency": fluency_cells,
    "factuality": factuality_cells,
    "win-rate": win_rate_cells,
}
"""By the judge's name in its results."""


def columns_of(cells: Cells) -> list[Column]:
    """A column for each figure."""
    return [Column(key=title, title=title) for title in cells]
