"""The commands that measure copying in recorded texts."""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import Positional

from anchored.durable_files import write_durably
from anchored.eval.recorded_texts import RecordedText, read_texts

from ..files import check_outputs

if TYPE_CHECKING:
    from anchored.eval.report.tables import Cell

Measured = tuple[dict[str, Any], str]
"""What a results file gets, and the table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextOptions:
    """Recorded texts, and where their results go."""

    texts: Positional[Path]
    """A run's folder, JSON lines of "text", "reference", "prompt", "setting", "seed" and "id", or
    what CopyBench writes."""
    prompts: Path | None = None
    """JSON lines of "id" and what the texts lack, as "reference"; a run's own unless given."""
    output: Path | None = None
    """File for the results: settings, a row for each text, versions; JSON."""
    overwrite: bool = False
    """Replace an output that exists."""

    def __post_init__(self) -> None:
        for path in (self.texts, self.prompts):
            if path is not None and not path.exists():
                raise FileNotFoundError(f"there is no file or folder {path}")
        check_outputs(self.output, overwrite=self.overwrite)

    def read(self) -> list[RecordedText]:
        """The texts."""
        return read_texts(self.texts, self.prompts)

    def write(self, results: dict[str, Any]) -> None:
        """Record results, with what they were computed with, where an output is named."""
        if self.output is None:
            return
        from anchored.environment import environment_record
        from anchored.eval.statistics import json_value

        whole = json_value({**results, "environment": environment_record()})
        self.output.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self.output, json.dumps(whole, indent=1, allow_nan=False) + "\n")


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureCopyingConfig(TextOptions):
    """Words copied from references: anchored measure copying generations.jsonl

    Prints the paper's six metrics for each setting (means over seeds), NCR where the settings of
    both models alone are there, and how long the longest copied spans are.
    """

    safe_setting: str = "p_s"
    """The setting that is the safe model alone."""
    risky_setting: str = "p_r"
    """The setting that is the risky model alone."""

    def measured(self) -> Measured:
        """All results, and the table."""
        from anchored.eval.copying.literal import distribution, literal_copying, ncr_by_setting
        from anchored.eval.copying.metrics import METRIC_SET
        from anchored.eval.report.tables import span_cells

        found = literal_copying(self.read(), progress=sys.stderr.isatty())
        ncr = ncr_by_setting(found, safe=self.safe_setting, risky=self.risky_setting)
        spread = {own.setting: distribution(own.scores) for own in found}
        results = {
            "schema": "anchored-measure/1",
            "measure": "copying",
            "metric_set": METRIC_SET,
            "settings": [
                {
                    "setting": own.setting,
                    "num_texts": len(own.texts),
                    **{name: value._asdict() for name, value in own.means.items()},
                    "ncr": ncr[own.setting]._asdict() if ncr else None,
                    **spread[own.setting],
                }
                for own in found
            ],
            "rows": [row for own in found for row in own.rows()],
        }
        rows: list[dict[str, Cell]] = [
            {
                "setting": own.setting,
                **own.means,
                "ncr": ncr.get(own.setting),
                **span_cells(spread[own.setting]),
            }
            for own in found
        ]
        return results, _copying_table(rows)


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureNonliteralConfig(TextOptions):
    """Characters taken over from works: anchored measure nonliteral stories.jsonl

    Prints, for each setting, the share of texts that name more than three of a work's characters
    ("characters", a list of lists of names), and their fluency where it was judged.
    """

    num_characters: int = 3
    """Characters of the work that a text may name."""
    comparator: Literal[">", ">="] = ">"
    """> counts texts with more, as the paper says; >= is CopyBench's own summary."""
    debt: Literal["none", "any"] = "none"
    """none: count texts whose prompt had a debt, which the paper turns off for these."""
    fluency: Path | None = None
    """What anchored judge fluency wrote about the same texts."""

    def __post_init__(self) -> None:
        TextOptions.__post_init__(self)
        if self.fluency is not None and not self.fluency.is_file():
            raise FileNotFoundError(f"there is no file {self.fluency}")

    def measured(self) -> Measured:
        """All results, and the table."""
        from anchored.eval.copying import nonliteral
        from anchored.eval.report.tables import SETTING_COLUMN, Column, terminal_table

        config = nonliteral.NonLiteralConfig(
            num_characters=self.num_characters, comparator=self.comparator, debt=self.debt
        )
        rows = nonliteral.character_rows(self.read())
        settings = nonliteral.character_overlap(rows, config)
        fluency = _fluency(self.fluency)
        cells: list[dict[str, Cell]] = [
            {
                "setting": own.setting,
                "overlap": own.share,
                "matched": own.mean_matched,
                "fluency": fluency.get(own.setting),
                "texts": own.num_texts,
            }
            for own in settings
        ]
        if config.debt == "none" and (num_debts := sum(own.num_with_debt for own in settings)):
            print(f"{num_debts} of {len(rows)} texts have a prefix debt", file=sys.stderr)
        columns = [
            SETTING_COLUMN,
            Column(key="overlap", title=f"characters {self.comparator} {self.num_characters}"),
            Column(key="matched", title="characters", num_decimals=2),
            Column(key="fluency", title="fluency", num_decimals=2),
            Column(key="texts", title="texts"),
        ]
        results = {
            "schema": "anchored-measure/1",
            "measure": "nonliteral",
            "metric_set": nonliteral.CHARACTER_METRIC,
            "config": asdict(config),
            "settings": [{**own.as_row(), "fluency": fluency.get(own.setting)} for own in settings],
            "rows": rows,
        }
        return results, terminal_table(cells, columns)


def run(config: MeasureCopyingConfig | MeasureNonliteralConfig) -> int:
    """Measure, print, write; returns the exit status."""
    results, table = config.measured()
    print(table)
    config.write(results)
    return 0


def _copying_table(rows: "list[dict[str, Cell]]") -> str:
    """The six metrics, and the longest copied spans in words."""
    from anchored.eval.report.tables import (
        COPYING_COLUMNS,
        SETTING_COLUMN,
        SPAN_COLUMNS,
        terminal_table,
    )

    copying = terminal_table(rows, [SETTING_COLUMN, *COPYING_COLUMNS])
    return (
        f"{copying}\n\nlongest copied span\n{terminal_table(rows, [SETTING_COLUMN, *SPAN_COLUMNS])}"
    )


def _fluency(path: Path | None) -> dict[str, float | None]:
    """Mean fluency by setting, as the judge recorded it; None where no text has a grade."""
    if path is None:
        return {}
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        if results["judge"] != "fluency":
            raise KeyError
        means = {own["setting"]: own["fluency"] for own in results["settings"]}
        return {name: own and own["mean"] for name, own in means.items()}
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is not what anchored judge fluency writes") from None
