"""Jobs over the input files of a source, which any number of processes on any machines share."""

import json
import multiprocessing
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from ...durable_files import locked, write_durably
from ...errors import AnchoredError
from ...identities import check_same
from .documents import RecordFields
from .input_files import SourceFiles

_LOG_SECONDS = 30.0

ADVICE = "restore them, or choose another output"
Observer = Callable[[int, int], None]
"""Is shown the bytes that were done since it was last called, and the tokens or documents."""
FileWork = Callable[[int, Observer], None]
"""Does what is missing of an input file, unless another process is at work on it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileJob(ABC):
    """Work on the input files of a source, each by itself; it is sent to the processes that do it.

    The progress folder has a lock for each file, so that every process takes files that no other
    is at work on. The system ends a lock with its process, and the file is free again.
    """

    source: str
    output: Path
    inputs: SourceFiles
    fields: RecordFields

    @property
    @abstractmethod
    def progress(self) -> Path:
        """Folder of the settings, the locks and what is done."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that decides the result, for JSON."""

    @abstractmethod
    def open(self) -> FileWork:
        """Make what takes time or memory, once a process."""

    def start(self) -> None:
        """Record the settings; ValueError naming the first that differs from those recorded."""
        with locked(self.progress / "start.lock"):
            path = self.progress / "job.json"
            settings = self.identity()
            if path.exists():
                check_same(json.loads(path.read_text()), settings, self.progress, advice=ADVICE)
            else:
                write_durably(path, json.dumps(settings, indent=2) + "\n")

    def lock_of(self, index: int) -> Path:
        """The file that the process at work on input file `index` has locked."""
        return self.progress / f"{index:05d}.lock"


def do_files(job: FileJob, *, num_workers: int, unit: str) -> str:
    """Do the files of a job that no other process is at work on; returns how fast it went.

    num_workers: processes, 0 for one a core. unit: what is counted with bytes.
    Raises: AnchoredError if a process is killed.
    """
    num_files = len(job.inputs.files)
    num_workers, num_threads = worker_counts(num_files, num_workers)
    progress = _Progress(job.source, num_files=num_files, unit=unit)
    try:
        if num_workers == 1:
            work = job.open()
            for index in range(num_files):
                work(index, progress.add)
                progress.num_finished += 1
        else:
            _do_in_pool(job, num_workers, num_threads, progress)
    except BrokenProcessPool as error:
        raise AnchoredError(
            "a working process was killed (out of memory?): run the same command again to go on"
        ) from error
    finally:
        progress.bar.close()
    return f"{job.source}: {progress.speed()} with {num_workers} workers"


def worker_counts(num_files: int, requested: int) -> tuple[int, int]:
    """Processes, and threads of the tokenizer in each: one process a core, but no more than files.

    requested: number of processes, 0 to choose it. Cores that are left over become threads.
    """
    num_local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's, on the same cores
    num_cores = max(1, len(os.sched_getaffinity(0)) // num_local)
    num_workers = min(requested or num_cores, num_files)
    return num_workers, max(1, num_cores // num_workers)


class _Progress:
    """Counts what was done since the start, on stderr: a bar, or a line now and then."""

    def __init__(self, title: str, *, num_files: int, unit: str) -> None:
        self._num_files, self._unit = num_files, unit
        self.num_finished = self._num_units = 0
        interval = 0.1 if sys.stderr.isatty() else _LOG_SECONDS
        self.bar = tqdm(
            desc=title, unit="B", unit_scale=True, file=sys.stderr, mininterval=interval
        )

    def add(self, num_bytes: int, num_units: int) -> None:
        self._num_units += num_units
        files = f"{self.num_finished}/{self._num_files} files"
        self.bar.set_postfix_str(f"{self.speed()}, {files}", refresh=False)
        self.bar.update(num_bytes)

    def speed(self) -> str:
        seconds = max(self.bar.format_dict["elapsed"], 1e-9)
        rate = self._num_units / seconds
        return f"{self.bar.n / 1e6 / seconds:.2f} MB/s, {rate:,.0f} {self._unit}/s"


def _do_in_pool(job: FileJob, num_workers: int, num_threads: int, progress: _Progress) -> None:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_workers, context, _start_worker, (job, num_threads)) as pool:
        try:
            for done in as_completed(
                pool.submit(_do_file, i) for i in range(len(job.inputs.files))
            ):
                progress.num_finished += 1
                progress.add(*done.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


_work: FileWork
"""The work of this process of the pool."""


def _start_worker(job: FileJob, num_threads: int) -> None:
    global _work
    os.environ["RAYON_NUM_THREADS"] = str(num_threads)  # read when the tokenizer first encodes
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _work = job.open()


def _end_with_parent() -> None:
    # A pool's workers wait for work for ever where the process that started them was killed.
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _do_file(index: int) -> tuple[int, int]:
    """Do a file in a process of the pool; returns what its `Observer` was shown, added up."""
    counts = [0, 0]

    def observe(num_bytes: int, num_units: int) -> None:
        counts[:] = counts[0] + num_bytes, counts[1] + num_units

    _work(index, observe)
    return counts[0], counts[1]
