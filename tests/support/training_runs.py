"""Training runs as programs, their curves, and checkpoints without a run."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from forked_program import ForkedProgram, start_ranks

from anchored.pretrain.run.checkpoints import seal

STEPS = 24
HELDOUT = {"interval": 10, "num_sequences": 5, "sources": ["meadow", "tower"]}
"""The steps of a tiny run, and what it is measured on where it is compared with others."""


def start_run(
    config_file: Path, *, num_processes: int = 1, program: str = "anchored.pretrain"
) -> list[ForkedProgram]:
    """The processes of a run by rank; program: the module that is run, faulty_pretrain perhaps."""
    words = ["--job.config_file", str(config_file)]
    return start_ranks(program, words, config_file.with_suffix(""), num_processes)


def wait_for(program: ForkedProgram, text: str) -> None:
    """Wait until a run has written a text; AssertionError if it ends before."""
    program.wait_until(lambda: program.output.exists() and text in program.output.read_text())


def train(config_file: Path, *, num_processes: int = 1) -> None:
    """Run to the end; AssertionError with the output of a process that fails."""
    for program in start_run(config_file, num_processes=num_processes):
        program.wait_for_success()


def torchrun(
    config_file: Path, *, max_restarts: int = 0, program: str = "anchored.pretrain"
) -> subprocess.Popen[str]:
    """A run on two processes under torchrun, whose stderr, its log too, is a pipe."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", f"--max-restarts={max_restarts}", "-m", program]
    command += ["--job.config_file", str(config_file), "--job.verbose"]
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])  # of faulty_pretrain too
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    """The lines that a run writes until one that holds a text; AssertionError without one."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError("".join(lines))


def curve(run: Path, name: str = "metrics.jsonl") -> list[dict[str, object]]:
    """The lines of a run's curve; none before there is one, or one that is still being written."""
    file = run / name
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def losses(run: Path) -> list[object]:
    return [line["loss"] for line in curve(run)]


def assert_same_curves(one: Path, other: Path) -> None:
    """Two runs have read the same data and learned the same, but for rounding."""
    close = pytest.approx
    for ours, theirs in zip(curve(one), curve(other), strict=True):
        assert ours["step"] == theirs["step"] and ours["source_tokens"] == theirs["source_tokens"]
        assert ours["loss"] == close(theirs["loss"], abs=2e-5)
        assert ours["grad_norm"] == close(theirs["grad_norm"], abs=1e-4)
    measured = [curve(run, "heldout.jsonl") for run in (one, other)]
    for ours, theirs in zip(*measured, strict=True):
        assert ours["step"] == theirs["step"]
        assert ours["losses"] == close(theirs["losses"], abs=2e-5)


def save_steps(run: Path, *steps: int) -> None:
    """Checkpoints of these steps in a run's folder, from which no model could be read."""
    for step in steps:
        save_weights({"weight": torch.zeros(9)}, run / "checkpoint" / f"step-{step}")


def save_weights(state: dict[str, object], checkpoint: Path) -> None:
    """A checkpoint as a run leaves it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it saves from a single process
        dcp.save(state, checkpoint_id=checkpoint, no_dist=True)
    seal(checkpoint)
