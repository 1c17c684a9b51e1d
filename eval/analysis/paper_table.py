"""The paper's central table, with a rerun's figure and the printed one in every cell."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from ...durable_files import write_durably
from ..copying.literal import copying_reduction, high_protection
from ..figures.style import drawn
from ..figures.trade_off import NCR, Scale, plot_trade_off
from ..recorded_texts import RISKY, SAFE, write_json
from ..report import tables
from ..report.tables import Cell, Column
from ..statistics import mean_of, std_of
from .evaluated import judged_figures
from .recorded_run import NotMeasured, RecordedRun
from .trade_offs import judged_in_resamples, ncr_in_resamples, trade_off_points

PRINTED: Final[Mapping[str, Any]] = json.loads(
    Path(__file__).with_name("paper_tables.json").read_text(encoding="utf-8")
)
"""The paper's six full tables and its table of high protection."""
PAIRS: Final = tuple(PRINTED["pairs"])
"""Names of the paper's pairs, as files of configs/eval have them."""
JUDGED: Final = ("fluency", "factuality")
"""The paper's two utilities: fluency of continued books, factuality of biographies."""
COLUMNS: Final = (
    tables.SETTING_COLUMN,
    *tables.COPYING_COLUMNS,
    *(Column(judge) for judge in JUDGED),
)
_ROUNDING: Final = 0.5e-3
"""Half of the last digit of the paper's full tables."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """A figure of a rerun with the printed one."""

    rerun: Cell
    printed: float | None
    num_decimals: int = 3
    rounding: float = _ROUNDING
    """Largest distance of an unrounded figure that is printed so."""

    @property
    def deviations(self) -> float | None:
        """(rerun - printed) in the rerun's standard deviations over seeds. 0 if both are the same
        after rounding; None if one is not known, and of one seed."""
        if self.printed is None or math.isnan(mean := mean_of(self.rerun)):
            return None
        difference, std = mean - self.printed, std_of(self.rerun)
        if abs(difference) <= self.rounding * (1 + 1e-9):  # decimals are not exact in binary
            return 0.0
        return difference / std if std > 0 else None

    def __str__(self) -> str:
        """The form "0.281 (0.273, +0.4)": rerun, printed, and their difference in deviations."""
        rerun, printed = (
            "-" if math.isnan(value) else f"{value:.{self.num_decimals}f}"
            for value in map(mean_of, (self.rerun, self.printed))
        )
        if self.deviations is None:
            return f"{rerun} ({printed})"
        return f"{rerun} ({printed}, {f'{self.deviations:+.1f}' if self.deviations else 0})"


AgreementRow = dict[str, Any]
"""A setting, and an `Agreement` by the keys of COLUMNS."""


def printed_rows(pair: str) -> list[dict[str, Any]]:
    """The 26 rows of a pair's full table, with the NCR that follows from them."""
    columns, rows = PRINTED["columns"], PRINTED["pairs"][pair]["rows"]
    named = [dict(zip(columns, row, strict=True)) for row in rows]
    alone = {row["setting"]: row for row in named}
    safe, risky = alone[SAFE], alone[RISKY]
    for row in named:
        reduction = copying_reduction(row, risky=risky, safe=safe)
        # (r - m) / (r - s) moves with r, m and s by |1 - n|, 1 and |n| over the gap, to first
        # order: so far may the NCR of unrounded figures be.
        rounding = [
            _ROUNDING * (abs(1.0 - ncr) + 1.0 + abs(ncr)) / (risky[name] - safe[name])
            for name, ncr in reduction.items()
        ]
        row |= {"ncr": fmean(reduction.values()), "ncr_rounding": fmean(rounding)}
    return named


def agreement_rows(pair: str, rerun: Sequence[Mapping[str, Any]]) -> list[AgreementRow]:
    """The paper's 26 rows, in its order; settings that a rerun lacks have no figures of it."""
    by_setting = {row["setting"]: row for row in rerun}
    return [
        {
            "setting": printed["setting"],
            **{
                column.key: Agreement(
                    by_setting.get(printed["setting"], {}).get(column.key),
                    printed[column.key],
                    column.num_decimals,
                    printed["ncr_rounding"] if column.key == "ncr" else _ROUNDING,
                )
                for column in COLUMNS[1:]
            },
        }
        for printed in printed_rows(pair)
    ]


def protected_rows(pair: str, rerun: Sequence[Mapping[str, Any]]) -> list[AgreementRow]:
    """The table of high protection: of each method the best factuality at NCR >= 0.75."""
    best, rows = high_protection(rerun), []
    for method, cells in PRINTED["pairs"][pair]["reported"].items():
        row = best.get(method) or {}
        shown: AgreementRow = {"method": method, "setting": row.get("setting")}
        for judge, printed in zip(("factuality", "fluency"), cells or ("", ""), strict=True):
            num_decimals = len(printed.partition(".")[2])  # each cell has its number of them
            figure, rounding = float(printed) if printed else None, 0.5 * 10**-num_decimals
            shown[judge] = Agreement(row.get(judge), figure, num_decimals or 2, rounding)
        rows.append(shown)
    return rows


def write_paper_table(pair: str, books: RecordedRun, bios: RecordedRun, folder: Path) -> str:
    """Write paper.md, .tex and .json and the picture trade_offs; the text of paper.md. Raises:
    ValueError for a run without results of a sweep."""
    # A row per setting of the books: its copying, its fluency, and its factuality in the bios.
    runs = dict(zip(JUDGED, (books, bios), strict=True))
    judged = {judge: judged_figures(run).get(judge, {}) for judge, run in runs.items()}
    rerun = [
        {**row, **{judge: figures.get(row["setting"]) for judge, figures in judged.items()}}
        for row in books.rows
    ]
    if not rerun or "method" not in books.rows[0]:
        raise ValueError(f"{books.folder} has no results of anchored sweep")
    rows, protected = agreement_rows(pair, rerun), protected_rows(pair, rerun)
    protected_columns = [Column("method"), COLUMNS[0], *COLUMNS[:-3:-1]]
    shown = [(rows, COLUMNS), (protected, protected_columns)]
    printed = {row["setting"] for row in rows}
    others = [row["setting"] for row in rerun if row["setting"] not in printed]
    full, best = (tables.markdown_table(*each) for each in shown)
    about = "\n".join(_about(pair, books, bios, others))
    text = f"{about}\n\n{full}\n\nBest factuality of each method at NCR >= 0.75:\n\n{best}\n"
    write_durably(folder / "paper.md", text)
    latex = "\n\n".join(tables.latex_table_of_parts([("", part)], head) for part, head in shown)
    write_durably(folder / "paper.tex", latex + "\n")
    recorded = {"pair": pair, "rows": _json(rows), "high_protection": _json(protected)}
    write_json(folder / "paper.json", recorded)
    drawn(folder, {"trade_offs": partial(_draw, books, bios, rerun)})
    return text


def _about(
    pair: str, books: RecordedRun, bios: RecordedRun, others: Sequence[str]
) -> Iterator[str]:
    models = PRINTED["pairs"][pair]
    yield f"# {models['risky']} anchored to {models['safe']}: the paper and a rerun\n"
    yield (
        "Each cell: the rerun's mean over seeds, then in brackets what the paper prints and the "
        "difference in the rerun's standard deviations over seeds, which one seed does not have; 0 "
        "is the same figure after rounding. The paper's NCR is computed from its printed figures."
    )
    for name, run, judge in zip(("Books", "Biographies"), (books, bios), JUDGED, strict=True):
        settings = run.results.get("settings", {})
        yield f"- {name}: {settings.get('risky')} anchored to {settings.get('safe')}"
        try:
            run.evaluated(judge)
        except NotMeasured as reason:
            yield f"- The {judge} was not measured: {reason}"
    if others:
        yield f"- Not in the paper's table: {', '.join(others)}"


def _json(rows: Sequence[AgreementRow]) -> list[dict[str, Any]]:
    return [
        {
            name: {"found": each.rerun, "printed": each.printed, "deviations": each.deviations}
            if isinstance(each, Agreement)
            else each
            for name, each in row.items()
        }
        for row in rows
    ]


def _draw(
    books: RecordedRun, bios: RecordedRun, rerun: Sequence[Mapping[str, Any]], path: Path
) -> None:
    """Both utilities against the NCR of the books, a panel each."""
    ncr: dict[str, Cell] = {row["setting"]: row["ncr"] for row in rerun}
    resamples = ncr_in_resamples(books)
    panels = {
        judge: trade_off_points(
            books,
            ncr,
            {row["setting"]: row[judge] for row in rerun},
            resampled=(resamples, judged_in_resamples(run, judge)),
        )
        for judge, run in zip(JUDGED, (books, bios), strict=True)
    }
    plot_trade_off(
        panels,
        path,
        title="Protection and both utilities of every method",
        utility={"fluency": Scale("fluency, 1 to 5"), "factuality": Scale("supported claims")},
        protection=NCR,
    )
