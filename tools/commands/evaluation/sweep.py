"""The command that runs every method and setting of a file on one pair, and tables them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from anchored.inputs import check_input

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
    """Print the settings, how much they generate, the placement of the models, about how many hours
    and GB, and every input that is missing with the command that makes it; no model is loaded."""

    def __post_init__(self) -> None:
        check_input(self.file)


def run(config: SweepConfig) -> int:
    """Do what is not done yet; returns the exit status."""
    from anchored.eval.experiments.plan import sweep_plan
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
    from anchored.eval.experiments.sweep_run import run_sweep

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
