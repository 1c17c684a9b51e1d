"""The command that runs every method and setting of a file on one pair, and tables them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tyro

from anchored import text_tables
from anchored.inputs import check_input

from ..files import is_first_process
from ..words import ConfigFile

if TYPE_CHECKING:
    from anchored.eval.experiments.sweep import Sweep


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig:
    """Run every method of a file on one pair: anchored sweep configs/eval/quickstart-methods.toml

    Records each generation with its ledger as it ends, and goes on where it was interrupted.
    Several processes share the settings.

    torchrun --nproc-per-node 2 -m anchored.tools.cli sweep FILE
    """

    file: tyro.conf.Positional[ConfigFile]
    """Config of the pair, prompts, held-out texts and methods."""
    output: Path = Path("runs/sweep")
    """Folder of all that is recorded, of tables and pictures; an interrupted run goes on in it."""
    inputs: Path | None = None
    """Folder of the models and texts that the file names; the file's own unless given."""
    retry_failed: bool = False
    """Try generations and held-out scores again that failed before; they stay recorded so
    otherwise."""
    dry_run: bool = False
    """Print the settings and how much they generate, and load no model."""

    def __post_init__(self) -> None:
        check_input(self.file)


def run(config: SweepConfig) -> int:
    """Do what is not done yet; returns the exit status."""
    from anchored.eval.experiments.sweep import load_sweep

    sweep = load_sweep(config.file, inputs=config.inputs)
    models = sweep.models
    for file in sweep.files:
        check_input(file)
    plan = _plan(sweep)  # reads what can be wrong before anything costly begins
    if config.dry_run:
        print(f"{plan}\n{sweep.placement.plan(models)}")
        return 0
    sweep.placement.take_gpus(sweep.device)
    sweep.placement.plan(models)  # ValueError for what does not fit
    from anchored.eval.experiments.sweep_run import run_sweep

    report = run_sweep(
        sweep,
        config.output,
        models.pair,
        is_first=is_first_process(),
        retry_failed=config.retry_failed,
    )
    if report:
        print(report)
    return 0


def _plan(sweep: "Sweep") -> str:
    """What would be generated; ValueError for prompts, rules or settings that cannot be."""
    from anchored.eval.experiments.sweep import load_prompts, sweep_settings

    settings = sweep_settings(sweep, passages=[])
    num_prompts = len(load_prompts(sweep.path(sweep.prompts))[: sweep.max_prompts or None])
    num_seeds = len(sweep.seeds)
    total = num_prompts * num_seeds * len(settings)
    rows = [
        [setting.name, setting.rule.name, "yes" if setting.rule.is_certified else "no"]
        for setting in settings
    ]
    return (
        f"{text_tables.aligned(['setting', 'rule', 'certified'], rows)}\n\n"
        f"{len(settings)} settings x {num_prompts} prompts x {num_seeds} seeds = {total} "
        f"generations of at most {sweep.max_new_tokens} tokens: {total * sweep.max_new_tokens} "
        "tokens (four bytes each at byte level)"
    )
