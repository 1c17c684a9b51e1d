"""The command that trains, and starts again what crashes."""

from functools import partial

from anchored.pretrain.launch import training_command
from anchored.pretrain.supervisor import Supervision, newest_step, start_processes, supervise

from .training_options import TrainConfig


def run(config: TrainConfig) -> int:
    """Train as `config` says; returns the exit status."""
    start = partial(
        start_processes,
        training_command(config.config, config.set),
        num_processes=config.processes,
        launcher=config.launcher,
    )
    policy = Supervision(
        restart=config.restart,
        max_crashes=config.max_crashes,
        shutdown_seconds=config.shutdown_seconds,
    )
    return supervise(start, partial(newest_step, config.config, config.set), policy)
