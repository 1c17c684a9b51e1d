"""Processes that tokenise one job's input files: whose share is which, how far they are."""

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from ... import AnchoredError
from .encoder import DocumentEncoder, EncodedDocument
from .job import TokenizeJob

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


class Throughput:
    """Counts what was tokenised since the start, on stderr: a bar, or a line now and then."""

    def __init__(self, description: str, *, num_files: int) -> None:
        self.num_bytes = 0
        self.num_tokens = 0
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

    def add(self, encoded: EncodedDocument) -> None:
        """Count a document."""
        num_bytes, num_tokens = encoded.size
        self.advance_to(self.num_bytes + num_bytes, self.num_tokens + num_tokens)

    def advance_to(self, num_bytes: int, num_tokens: int) -> None:
        """Set the totals; the bar itself sees to it that it is not drawn too often."""
        self.num_bytes, self.num_tokens = num_bytes, num_tokens
        files = f"{self._num_finished}/{self._num_files} files"
        self._bar.set_postfix_str(f"{self._per_second(num_tokens):,.0f} tokens/s, {files}", False)
        self._bar.update(num_bytes - self._bar.n)

    def finish_file(self) -> None:
        """Count an input file as done."""
        self._num_finished += 1
        self.advance_to(self.num_bytes, self.num_tokens)

    def close(self) -> str:
        """End the bar; returns the average rates in words."""
        rates = self._per_second(self.num_bytes / 1e6), self._per_second(self.num_tokens)
        self._bar.close()
        return f"{rates[0]:.2f} MB/s, {rates[1]:,.0f} tokens/s"

    def _per_second(self, total: float) -> float:
        return total / max(time.perf_counter() - self._start, 1e-9)


@dataclass(frozen=True, slots=True)
class WorkerCounts:
    """How many processes, and how many threads of the tokenizer in each."""

    num_workers: int
    num_threads: int

    @classmethod
    def of(cls, *, num_cores: int, num_files: int, requested: int) -> "WorkerCounts":
        """One process a core, but no more than there are files; spare cores become threads.

        requested: number of processes, 0 to choose it. Raises ValueError if it is negative.
        """
        if requested < 0:
            raise ValueError(f"workers must be at least 0 (0: one a core), got {requested}")
        num_workers = max(1, min(requested or num_cores, num_files))
        return cls(num_workers, max(1, num_cores // num_workers))


def tokenize_here(
    job: TokenizeJob, encoder: DocumentEncoder, indices: Sequence[int], throughput: Throughput
) -> None:
    """Tokenise the input files with these indices in this process."""
    for index in indices:
        job.tokenize_file(index, encoder, throughput.add)
        throughput.finish_file()


def tokenize_in_processes(
    job: TokenizeJob, indices: Sequence[int], counts: WorkerCounts, throughput: Throughput
) -> None:
    """Tokenise them in several processes. Raises AnchoredError if one is killed."""
    context = multiprocessing.get_context("spawn")
    totals = context.Array("q", 2)
    try:
        with ProcessPoolExecutor(
            counts.num_workers, context, _start_worker, (job, counts.num_threads, totals)
        ) as pool:
            _follow([pool.submit(_tokenize_file, index) for index in indices], totals, throughput)
    except BrokenProcessPool as error:
        raise AnchoredError(
            "a tokenising process was killed (out of memory?): run the same command again to go on"
        ) from error


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


_worker: tuple[TokenizeJob, DocumentEncoder, Any]
"""Of a process of the pool: its job, its tokenizer and the totals of all processes."""


def _start_worker(job: TokenizeJob, num_threads: int, totals: Any) -> None:
    global _worker
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # read when the tokenizer first encodes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = job, DocumentEncoder(job.tokenizer_file), totals


def _end_with_parent() -> None:
    # A pool's workers wait for work for ever where the process that started them was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tokenize_file(index: int) -> None:
    job, encoder, totals = _worker

    def observe(encoded: EncodedDocument) -> None:
        with totals.get_lock():
            totals[:] = [total + size for total, size in zip(totals, encoded.size, strict=True)]

    job.tokenize_file(index, encoder, observe)
