"""The commands that run methods or lm-eval with a pair, and hold a rerun against the paper."""

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from unittest.mock import patch

from anchored.inputs import check_input
from anchored.wrong_words import refuse_message

from ..files import is_first_process
from ..option_types import POSITIONAL, SweepFile


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig:
    """Run every method of a file on one pair: anchored sweep configs/eval/quickstart-methods.toml

    Records each generation with its ledger as it ends, and goes on where it was interrupted.
    Several processes share the settings.

    torchrun --nproc-per-node 2 -m anchored sweep FILE
    """

    file: Annotated[SweepFile, POSITIONAL]
    """Config of the pair, prompts, held-out texts and methods; --list names the package's."""
    output: Path = Path("runs/sweep")
    """Folder of all that is recorded, of tables and pictures; an interrupted run goes on in it."""
    inputs: Path | None = None
    """Folder in which the models and texts are that the file names, in place of its key `inputs`.
    Without either, they are looked for next to the file, then where the command runs."""
    retry_failed: bool = False
    """Try generations and held-out scores again that failed before; they stay recorded so
    otherwise."""
    dry_run: bool = False
    """Print the settings, how much they generate, the placement of the models, and every input that
    is missing with the command that makes it; no model is loaded."""

    def __post_init__(self) -> None:
        check_input(self.file)


def sweep(config: SweepConfig) -> int:
    """Do what is not done yet; returns the exit status."""
    from anchored.eval.experiments.plan import run_sweep, sweep_plan
    from anchored.eval.experiments.sweep import load_sweep

    sweep = load_sweep(config.file, inputs=config.inputs)
    if config.dry_run:
        print(sweep_plan(sweep))
        return 0
    for key, names in sweep.files.items():
        for name in names:
            sweep.path(key, name)  # FileNotFoundError where it is missing
    sweep.placement.take_gpus(sweep.device)
    sweep_plan(sweep)  # reads what can be wrong before anything costly begins
    report = run_sweep(
        sweep,
        config.output,
        sweep.models.load,
        is_first=is_first_process(),
        retry_failed=config.retry_failed,
    )
    if report:
        print(report)
    return 0


@dataclass(frozen=True, kw_only=True, slots=True)
class PaperConfig:
    """Hold a rerun against the paper's tables: anchored paper PAIR --books RUN1 --bios RUN2

    Prints the 26 settings of the pair's full table and the table of high protection. Each cell has
    what the rerun measured, what is printed, and by how many standard deviations they differ. Reads
    what anchored sweep and anchored evaluate recorded; nothing is generated.
    """

    pair: Annotated[str, POSITIONAL]
    """Pair of the paper, by the name of its file in configs/eval: llama3.1-70b+tinycomma-1.8b"""
    books: Path
    """Folder of the sweep over books, with their fluency; NCR is that of its copying."""
    bios: Path
    """Folder of the sweep over biographies, with their factuality."""
    output: Path = Path("runs/paper")
    """Folder for paper.md, .tex and .json, and the picture of both trade-offs."""

    def __post_init__(self) -> None:
        from anchored.eval.analysis.paper_table import PAIRS

        if self.pair not in PAIRS:
            raise ValueError(f"the paper's pairs are {', '.join(PAIRS)}, got {self.pair!r}")
        check_input(self.books, "folder")
        check_input(self.bios, "folder")


def paper(config: PaperConfig) -> int:
    """Print and write the tables; returns the exit status."""
    from anchored.eval.analysis.paper_table import write_paper_table
    from anchored.eval.analysis.recorded_run import RecordedRun

    books, bios = RecordedRun(config.books), RecordedRun(config.bios)
    print(write_paper_table(config.pair, books, bios, config.output))
    print(config.output / "paper.md")
    return 0


def lm_eval(arguments: list[str]) -> int:
    """Register the pair as a model, and hand all words to lm-eval's command line."""
    from anchored.eval.harness.tasks import register_model

    register_model()
    from lm_eval.__main__ import cli_evaluate

    sys.argv = ["anchored lm-eval", *arguments]
    with patch.object(argparse.ArgumentParser, "error", refuse_message):
        cli_evaluate()
    return 0
