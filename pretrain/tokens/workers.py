"""Processes that work on one job's input files: whose share is which, how far they are."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, Protocol

from tqdm import tqdm

from ... import AnchoredError

_LOG_SECONDS = 30.0
_REFRESH_SECONDS = 0.5
_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class FileShare:
    """The input files of one of `count` processes, by torchrun or a Slurm array, or of the only."""

    index: int
    count: int
    num_local: int
    """Processes on this machine, which share its cores."""

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise ValueError(f"rank must be in [0, {self.count}), got {self.index}")

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "FileShare":
        """torchrun's RANK and WORLD_SIZE, else Slurm's array task, else 0 of 1.

        Raises: ValueError if a variable is not a number or the rank is out of range.
        """

        def number(name: str, default: str = "") -> int:
            text = environment.get(name, default)
            if not text.isdecimal():
                raise ValueError(f"environment variable {name} must be a number, got {text!r}")
            return int(text)

        if "RANK" in environment:
            return cls(number("RANK"), number("WORLD_SIZE"), number("LOCAL_WORLD_SIZE", "1"))
        if "SLURM_ARRAY_TASK_ID" in environment:
            offset = number("SLURM_ARRAY_TASK_ID") - number("SLURM_ARRAY_TASK_MIN")
            index = offset // number("SLURM_ARRAY_TASK_STEP", "1")
            return cls(index, number("SLURM_ARRAY_TASK_COUNT"), 1)
        return cls(0, 1, 1)


Observer = Callable[[int, int], None]
"""Is shown the bytes that were done since it was last called, and the tokens or documents."""
FileWork = Callable[[int, Observer], None]
"""Does the input file of an index, or what is missing of it."""


class FileJob(Protocol):
    """Work on input files, each by itself; it is sent to the processes that do it."""

    def open(self) -> FileWork:
        """Make what takes time or memory, once a process."""
        ...


class Throughput:
    """Counts what was done since the start, on stderr: a bar, or a line now and then."""

    def __init__(self, description: str, *, num_files: int, unit: str = "tokens") -> None:
        """unit: what is counted beside bytes."""
        self.num_bytes = 0
        self.num_units = 0
        self._unit = unit
        self._num_files = num_files
        self._num_finished = 0
        self._start = time.perf_counter()
        self._bar = tqdm(
            desc=description,
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            mininterval=_REFRESH_SECONDS if sys.stderr.isatty() else _LOG_SECONDS,
        )

    def add(self, num_bytes: int, num_units: int) -> None:
        """Count a document."""
        self.advance_to(self.num_bytes + num_bytes, self.num_units + num_units)

    def advance_to(self, num_bytes: int, num_units: int) -> None:
        """Set the totals; the bar itself sees to it that it is not drawn too often."""
        self.num_bytes, self.num_units = num_bytes, num_units
        files = f"{self._num_finished}/{self._num_files} files"
        self._bar.set_postfix_str(
            f"{self._per_second(num_units):,.0f} {self._unit}/s, {files}", False
        )
        self._bar.update(num_bytes - self._bar.n)

    def finish_file(self) -> None:
        """Count an input file as done."""
        self._num_finished += 1
        self.advance_to(self.num_bytes, self.num_units)

    def close(self) -> str:
        """End the bar; returns the average rates in words."""
        self._bar.close()
        rate = self._per_second(self.num_bytes / 1e6)
        return f"{rate:.2f} MB/s, {self._per_second(self.num_units):,.0f} {self._unit}/s"

    def _per_second(self, total: float) -> float:
        return total / max(time.perf_counter() - self._start, 1e-9)


def do_share(
    job: FileJob, share: FileShare, *, name: str, num_files: int, num_workers: int, unit: str
) -> str:
    """Do this process's share of a job's files; returns one line about what was done.

    num_workers: processes of this machine, 0 for one a core. unit: what is counted beside bytes.
    Raises: AnchoredError if a process is killed.
    """
    indices = range(share.index, num_files, share.count)
    num_workers, num_threads = worker_counts(share, num_files=len(indices), requested=num_workers)
    throughput = Throughput(name, num_files=len(indices), unit=unit)
    try:
        if num_workers == 1:
            work = job.open()
            for index in indices:
                work(index, throughput.add)
                throughput.finish_file()
        else:
            context = multiprocessing.get_context("spawn")
            totals = context.Array("q", 2)
            with ProcessPoolExecutor(
                num_workers, context, _start_worker, (job, num_threads, totals)
            ) as pool:
                _follow([pool.submit(_do_file, index) for index in indices], totals, throughput)
    except BrokenProcessPool as error:
        raise AnchoredError(
            "a working process was killed (out of memory?): run the same command again to go on"
        ) from error
    finally:
        rate = throughput.close()
    return (
        f"{name}: process {share.index} of {share.count} with {num_workers} "
        f"workers: {len(indices)} of {num_files} files, {rate}"
    )


def worker_counts(share: FileShare, *, num_files: int, requested: int) -> tuple[int, int]:
    """Processes, and threads of the tokenizer in each: one process a core, but no more than files.

    requested: number of processes, 0 to choose it. Cores that are left over become threads.
    """
    num_cores = max(1, len(os.sched_getaffinity(0)) // share.num_local)
    num_workers = max(1, min(requested or num_cores, num_files))
    return num_workers, max(1, num_cores // num_workers)


def _follow(futures: Sequence[Future[None]], totals: Any, throughput: Throughput) -> None:
    pending = set(futures)
    while pending:
        finished, pending = wait(pending, timeout=_POLL_SECONDS)
        throughput.advance_to(*totals)
        for future in finished:
            if error := future.exception():
                for other in pending:
                    other.cancel()
                raise error
            throughput.finish_file()


_worker: tuple[FileWork, Any]
"""The work of this process of the pool, and the totals of all processes."""


def _start_worker(job: FileJob, num_threads: int, totals: Any) -> None:
    global _worker
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # read when the tokenizer first encodes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = job.open(), totals


def _end_with_parent() -> None:
    # A pool's workers wait for work for ever where the process that started them was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do_file(index: int) -> None:
    work, totals = _worker

    def observe(num_bytes: int, num_units: int) -> None:
        with totals.get_lock():
            totals[:] = [totals[0] + num_bytes, totals[1] + num_units]

    work(index, observe)
