"""Training runs as processes of their own, forked, and checkpoints without a run."""

import json
import warnings
from pathlib import Path

import torch.distributed.checkpoint as dcp
from forked_program import ForkedProgram, start_ranks

from anchored.pretrain.run.checkpoints import seal


def start_run(
    config_file: Path, *, num_processes: int = 1, program: str = "anchored.pretrain"
) -> list[ForkedProgram]:
    """The processes of a run by rank, with their outputs beside the config.

    program: the module that is run, faulty_pretrain perhaps.
    """
    words = ["--job.config_file", str(config_file)]
    return start_ranks(program, words, config_file.with_suffix(""), num_processes)


def train(config_file: Path, *, num_processes: int = 1) -> None:
    """Run to the end; AssertionError with the output of a process that fails."""
    for program in start_run(config_file, num_processes=num_processes):
        program.wait_for_success()


def lines_of(file: Path) -> list[dict[str, object]]:
    """The lines of a curve; none before there is one, or one that is still being written."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def save_weights(state: dict[str, object], checkpoint: Path) -> None:
    """A checkpoint as a run leaves it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it saves from a single process
        dcp.save(state, checkpoint_id=checkpoint, no_dist=True)
    seal(checkpoint)
