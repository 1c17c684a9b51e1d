"""Processes that tokenise the input files of one job, and how far they are."""

import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from .. import AnchoredError
from .document_encoder import DocumentEncoder, EncodedDocument
from .throughput import Throughput
from .tokenize_job import TokenizeJob

_POLL_SECONDS = 0.5


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


class _Worker:
    """A process's tokenizer, and its part in the totals of all."""

    def __init__(self, job: TokenizeJob, totals: Any) -> None:
        self._job = job
        self._totals = totals
        self._encoder = DocumentEncoder(job.tokenizer_file)

    def tokenize(self, index: int) -> None:
        self._job.tokenize_file(index, self._encoder, self._observe)

    def _observe(self, encoded: EncodedDocument) -> None:
        if encoded.token_ids is not None:
            with self._totals.get_lock():
                self._totals[0] += len(encoded.document.text or b"")
                self._totals[1] += len(encoded.token_ids)


_worker: _Worker | None = None


def _start_worker(job: TokenizeJob, num_threads: int, totals: Any) -> None:
    global _worker
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # read when the tokenizer first encodes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _worker = _Worker(job, totals)


def _end_with_parent() -> None:
    # A pool's workers wait for work for ever where the process that started them was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _tokenize_file(index: int) -> None:
    assert _worker is not None
    _worker.tokenize(index)
