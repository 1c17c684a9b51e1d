"""The command that analyses what a run recorded."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

from ..files import check_input

if TYPE_CHECKING:
    from anchored.eval.analysis.recorded_run import RecordedRun
    from anchored.eval.analysis.registry import Analyses

FOLDER = "analysis"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """A run's folder, and how much of it is read."""

    run: Positional[Path]
    """Folder of anchored quickstart or anchored sweep."""
    factuality: Path | None = None
    """What anchored judge factuality wrote about the run's texts; RUN/evaluation/factuality.json
    unless given."""
    ncr_of: Path | None = None
    """Folder of another run of the same settings, whose NCR is taken: of prompts with references,
    where the judged texts have none, as biographies."""
    ledgers: int = 64
    """Ledgers of each setting that are read, evenly among its texts; 0 reads all."""

    def __post_init__(self) -> None:
        check_input(self.run, "folder")
        check_input(self.ncr_of, "folder")
        check_input(self.factuality)
        if self.ledgers < 0:
            raise ValueError(f"--ledgers must be at least 0, got {self.ledgers}")

    def analysed(self) -> "tuple[RecordedRun, Analyses]":
        """The run, and what could be analysed of it."""
        from anchored.eval.analysis.recorded_run import RecordedRun
        from anchored.eval.analysis.registry import analyses

        named = {} if self.factuality is None else {"factuality": self.factuality}
        other = None if self.ncr_of is None else RecordedRun(self.ncr_of)
        recorded = RecordedRun(self.run, max_ledgers=self.ledgers, named=named, ncr_of=other)
        return recorded, analyses(recorded)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnalyseConfig(RunOptions):
    """Analyses of recorded texts and ledgers: anchored analyse runs/quickstart

    Prints a table for each and writes it as Markdown, LaTeX and CSV with a picture: divergences by
    domain, prefix debts, where copied spans begin, budgets, kept draws. Nothing is generated.
    """

    output: Path | None = None
    """Folder for tables and pictures; RUN/analysis unless given. What is in it is replaced."""


def run(config: AnalyseConfig) -> int:
    """Analyse, print, write; returns the exit status."""
    from anchored.eval.analysis.registry import write_analyses
    from anchored.eval.report.tables import terminal_table

    _, result = config.analysed()
    for own in result.found.values():
        print(f"{own.title}\n{terminal_table(own.rows, own.columns)}\n")
    for name, why in result.not_measured.items():
        print(f"not measured: {name}: {why}")
    write_analyses(result.found, config.output or config.run / FOLDER)
    return 0
