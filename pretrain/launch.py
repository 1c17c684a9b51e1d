"""Start a pretraining run as a process of its own and wait for it."""

import os
import shutil
import subprocess
import sys
from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .. import AnchoredError

_TAIL_LINES = 20
_READ_BYTES = 4096


def launch(config_file: Path, *, num_processes: int = 1) -> None:
    """Run anchored.pretrain on a config file, with its progress bar on our stderr.

    num_processes: 1 runs the module itself, more run it under torchrun on this machine.
    The process gets no standard input and the width of our terminal. Where stderr is not a
    terminal, only finished lines are shown.
    Raises: AnchoredError with the last lines of its output if it fails.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, got {num_processes}")
    columns = shutil.get_terminal_size().columns
    with subprocess.Popen(
        _command(config_file, num_processes),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"COLUMNS": str(columns)},
    ) as process:
        assert process.stdout is not None
        try:
            tail = _forward(process.stdout)
        except BaseException:  # an interrupt must not leave the run behind
            process.terminate()
            raise
    if process.returncode != 0:
        raise AnchoredError(
            f"pretraining with {config_file} failed with status {process.returncode}:\n{tail}"
        )


def _command(config_file: Path, num_processes: int) -> list[str]:
    python, *program = training_command(config_file)
    if num_processes == 1:
        return [python, *program]
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    return [python, *torchrun, f"--nproc-per-node={num_processes}", *program]


def training_command(config_file: Path, settings: Sequence[str] = ()) -> list[str]:
    """The program of one process; settings: SECTION.KEY=VALUE."""
    program = [sys.executable, "-m", "anchored.pretrain", "--job.config_file", str(config_file)]
    return [*program, *(f"--{setting}" for setting in settings)]


def _forward(output: IO[bytes]) -> str:
    """Copy a process's output to stderr as it comes; returns its last lines."""
    is_terminal = sys.stderr.isatty()
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    lines: deque[str] = deque(maxlen=_TAIL_LINES)
    pending = ""
    while chunk := os.read(output.fileno(), _READ_BYTES):
        text = decoder.decode(chunk)
        if is_terminal:
            print(text, end="", file=sys.stderr, flush=True)
        *finished, pending = (pending + text).split("\n")
        for line in finished:
            # A progress bar redraws its line after carriage returns: its last state counts.
            lines.append(line.rstrip("\r").rpartition("\r")[2])
            if not is_terminal:
                print(lines[-1], file=sys.stderr)
    return "\n".join(lines)
