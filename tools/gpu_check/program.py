"""All checks and timings of one machine's GPU, saved as they come, whatever becomes of each."""

import json
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

import torch

from anchored import text_tables
from anchored.durable_files import write_durably
from anchored.environment import environment_record

from .check import FULL, Sizes
from .goals import goal_rows
from .parts import PART_S, Part
from .tasks import Row, compile_share, task_named, tasks_of

SCHEMA = "anchored-gpu-check/2"
COMPILE_S = 200.0
"""Seconds that compilations ahead of a part may take; the checks compile what is left."""
COMPILE = "compile"
"""A task that compiles a share of a part's kernels: "compile 3 of 16"."""
MOST_REASON = 300
"""Characters of a reason."""

Worker = Callable[[Part, str, Sizes, Connection], None]


def run_task(part: Part, name: str, sizes: Sizes, rows: Connection) -> None:
    """Send the rows of one task, then None; in a process of its own. An exception is a row too."""
    try:
        device = torch.device("cuda", 0)
        for row in _rows(part, name, device, sizes):
            rows.send(row)
    except Exception as error:  # whatever a kernel, a compiler or a library may raise
        rows.send(_failed(_one_line(error)))
    rows.send(None)


def _rows(part: Part, name: str, device: torch.device, sizes: Sizes) -> Iterator[Row]:
    if not name.startswith(COMPILE):
        yield from task_named(part, name).run(device, sizes)
        return
    _, share, _, num_shares = name.split()
    num_launched = compile_share(part, int(share) - 1, int(num_shares), device, sizes)
    yield {"status": "passed", "detail": f"{num_launched} kernels"}


def _failed(reason: str) -> Row:
    return {"status": "failed", "detail": reason}


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:MOST_REASON]


@dataclass(frozen=True, slots=True)
class Runner:
    """How tasks run: what with, and in what kind of process."""

    sizes: Sizes = FULL
    worker: Worker = run_task
    start: Literal["spawn", "forkserver"] = "spawn"
    """A process that is forked cannot use CUDA once its parent has asked for as little as the
    number of devices, as libraries do when they are imported: so each begins anew."""
    scratch: str | None = None
    """Where tasks make their temporary files; the machine's place unless given."""

    def started(self, part: Part, name: str) -> "Running":
        """A process that gets ready, and waits until it is told to go."""
        context = multiprocessing.get_context(self.start)
        if self.start == "forkserver":
            context.set_forkserver_preload([__name__])
        ours, theirs = context.Pipe()
        process = context.Process(  # type: ignore[attr-defined]
            target=_wait_and_work, args=(self, part, name, theirs)
        )
        process.start()
        theirs.close()
        return Running(process, ours)


def _wait_and_work(runner: Runner, part: Part, name: str, rows: Connection) -> None:
    os.setpgid(0, 0)  # with the processes that it starts, so that they end together
    tempfile.tempdir = runner.scratch or tempfile.tempdir
    rows.recv()
    runner.worker(part, name, runner.sizes, rows)


class Running:
    """A task in a process of its own."""

    def __init__(self, process: BaseProcess, rows: Connection) -> None:
        self._process, self._rows = process, rows

    def go(self) -> "Running":
        """Let it work."""
        with suppress(ConnectionError):  # one that has crashed is found out when its rows are read
            self._rows.send("go")
        return self

    def rows(self, limit_s: float) -> Iterator[Row]:
        """As they come; a crash, or no end within the limit, is a last one that says so."""
        deadline = time.monotonic() + limit_s
        try:
            while True:
                if not self._rows.poll(max(0.0, deadline - time.monotonic())):
                    yield _failed(f"no answer within {limit_s:.0f} s")
                    return
                row = self._rows.recv()
                if row is None:
                    return
                yield row
        except (EOFError, ConnectionError):
            self._process.join()
            yield _failed(f"its process ended with {_ending(self._process.exitcode)}")
        finally:
            self.end()

    def end(self) -> None:
        """Whatever it does, and whatever it has started."""
        assert self._process.pid is not None
        with suppress(ProcessLookupError):  # it has ended, or has no group yet
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _ending(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return signal.Signals(-exit_code).name
    return f"exit status {exit_code}"


DEFAULT_RUNNER = Runner()


class Record:
    """The results file: written anew, atomically, after every result."""

    def __init__(self, path: Path, parts: Sequence[Part]) -> None:
        self._path = path
        self.content: dict[str, Any] = {"schema": SCHEMA, "environment": environment_record()}
        self.content |= {part: [] for part in parts}

    def add(self, part: Part, row: Row) -> None:
        """Print one result and save all."""
        self.content[part].append(row)
        print("  ".join(f"{name} {_shown(value)}" for name, value in row.items()), flush=True)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(self._path, json.dumps(self.content, indent=1) + "\n")

    def num_failed(self, part: Part) -> int:
        return sum(row["status"] == "failed" for row in self.content[part])


def check_gpu(
    parts: Sequence[Part],
    output: Path,
    *,
    runner: Runner = DEFAULT_RUNNER,
    names: Sequence[str] | None = None,
) -> int:
    """Run parts with all results in `output`, then the table of goals; 1 if something failed.

    names: of the tasks to run, with nothing compiled ahead; all by default.
    """
    record, start = Record(output, parts), time.monotonic()
    for part in parts:
        _run_part(part, record, runner, names)
    num_failed = sum(map(record.num_failed, parts))
    print(text_tables.aligned(("figure", "goal", "here"), goal_rows(record.content)))
    print(f"{num_failed} failed; {time.monotonic() - start:.0f} s; results in {output}")
    return 1 if num_failed else 0


def _run_part(part: Part, record: Record, runner: Runner, names: Sequence[str] | None) -> None:
    """With a folder of its own for temporary files, which a task that was killed leaves behind."""
    with tempfile.TemporaryDirectory(prefix="anchored-gpu-check-") as scratch:
        _run_tasks(part, record, replace(runner, scratch=scratch), names)


def _run_tasks(part: Part, record: Record, runner: Runner, names: Sequence[str] | None) -> None:
    deadline = time.monotonic() + PART_S
    if part in ("correctness", "speed") and names is None:
        for row in _compiled(part, runner):
            record.add(part, row)
    tasks = [task for task in tasks_of(part) if names is None or task.name in names]
    running = [runner.started(part, task.name) for task in tasks[:1]]
    for task, following in zip_longest(tasks, tasks[1:]):
        if following is not None:  # it imports what it needs meanwhile
            running.append(runner.started(part, following.name))
        current, start = running.pop(0), time.monotonic()
        limit_s = min(task.limit_s, deadline - start)
        if limit_s <= 0.0:
            current.end()
            record.add(part, {"name": task.name, **_failed("not run: the part's time was over")})
            continue
        for row in current.go().rows(limit_s):
            seconds = round(time.monotonic() - start, 2)
            record.add(part, {"name": task.name, **row, "seconds": seconds})


def _compiled(part: Part, runner: Runner) -> Iterator[Row]:
    """Kernels of a part, compiled beside each other before it begins."""
    num_shares = (os.cpu_count() or 1) if runner.sizes.is_timed else 1
    start = time.monotonic()
    names = [f"{COMPILE} {share + 1} of {num_shares}" for share in range(num_shares)]
    shares = {name: runner.started(part, name).go() for name in names}
    for name, running in shares.items():
        for row in running.rows(max(0.0, start + COMPILE_S - time.monotonic())):
            yield {"name": name, **row, "seconds": round(time.monotonic() - start, 2)}


def _shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
