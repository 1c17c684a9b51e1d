"""A training run's processes on one machine, or a command that starts them, kept going."""

import logging
import os
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from .plan.data_config import read_run_config
from .run.checkpoints import sealed_steps

logger = logging.getLogger(__name__)
_POLL_S = 0.1
_CRASH_GRACE_S = 5.0  # for the last words of the others, which wait for one that is gone
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Supervision:
    """When to start again, and how long a stop may take."""

    restart: bool = True
    max_crashes: int = 3
    """In a row, without a new checkpoint between them."""
    shutdown_seconds: float = 600.0
    """From SIGTERM to SIGKILL: longer than a step and a save."""


class StopRequest:
    """Remembers SIGTERM and Ctrl-C while it is entered; main thread only."""

    def __init__(self) -> None:
        self.arrived = False

    def __enter__(self) -> "StopRequest":
        numbers = (signal.SIGTERM, signal.SIGINT)
        self._before = {number: signal.signal(number, self._remember) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.arrived = True


def supervise(
    start: Callable[[], list[subprocess.Popen[bytes]]],
    newest_step: Callable[[], int],
    policy: Supervision,
) -> int:
    """Run to the end, or to a signal, and start again what crashes; returns the exit status.

    start: begins the processes of a run, which go on from the last checkpoint.
    newest_step: of its checkpoints; a crash after a new one counts as the first.
    """
    num_crashes, step = 0, newest_step()
    with StopRequest() as stop:
        while True:
            status = _end_of(start(), stop, policy.shutdown_seconds)
            if status == 0 or stop.arrived or not policy.restart:
                return status
            before, step = step, newest_step()
            num_crashes = 1 if step > before else num_crashes + 1
            crash = f"the run ended with status {status}, its last checkpoint is of step {step}"
            if num_crashes >= policy.max_crashes:
                logger.error("%s: crash %d without a new one, giving up", crash, num_crashes)
                return status
            pause = min(_FIRST_PAUSE_S * 2 ** (num_crashes - 1), _LONGEST_PAUSE_S)
            logger.warning("%s: starting again in %.0f s", crash, pause)
            end = time.monotonic() + pause
            while time.monotonic() < end and not stop.arrived:
                time.sleep(_POLL_S)
            if stop.arrived:
                return status


def _end_of(
    processes: list[subprocess.Popen[bytes]], stop: StopRequest, shutdown_seconds: float
) -> int:
    """Wait for all: as long as they work, and a while longer after a signal or a crash."""
    deadline: float | None = None
    try:
        while any(process.poll() is None for process in processes):
            if deadline is None and stop.arrived:
                deadline = time.monotonic() + shutdown_seconds
                _signal(processes, signal.SIGTERM)
            if deadline is None and any(process.poll() for process in processes):
                deadline = time.monotonic() + _CRASH_GRACE_S
            if deadline is not None and time.monotonic() > deadline:
                _signal(processes, signal.SIGKILL)
            time.sleep(_POLL_S)
    except BaseException:
        _signal(processes, signal.SIGKILL)
        raise
    statuses = [process.returncode for process in processes if process.returncode]
    # What crashed says more than what was killed because of it.
    return next((one for one in statuses if one > 0), 128 - statuses[0] if statuses else 0)


def _signal(processes: list[subprocess.Popen[bytes]], number: signal.Signals) -> None:
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


def start_processes(
    command: Sequence[str], *, num_processes: int = 1, launcher: str = ""
) -> list[subprocess.Popen[bytes]]:
    """Begin the ranks of a run on this machine, or `launcher` in their place, such as srun.

    Each has a process group of its own, so that what it started ends with it.
    """
    if launcher or num_processes == 1:
        return [subprocess.Popen([*shlex.split(launcher), *command], start_new_session=True)]
    return [
        subprocess.Popen(command, env=os.environ | variables, start_new_session=True)
        for variables in _rank_variables(num_processes)
    ]


def _rank_variables(num_processes: int) -> list[dict[str, str]]:
    """What torchrun would set for each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    size = str(num_processes)
    group = {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    # Else each would take all cores for what little it computes on them.
    cores = max(1, len(os.sched_getaffinity(0)) // num_processes)
    group["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(cores))
    return [group | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_processes)]


def newest_step(config_file: Path, settings: Sequence[str] = ()) -> int:
    """The step of a run's last checkpoint; 0 where it has none."""
    tables = read_run_config(config_file)
    said = dict(setting.split("=", 1) for setting in settings)
    run = said.get("job.dump_folder") or tables.get("job", {}).get("dump_folder", "outputs")
    name = said.get("checkpoint.folder") or tables.get("checkpoint", {}).get("folder", "checkpoint")
    return max(sealed_steps(Path(run) / name), default=0)
