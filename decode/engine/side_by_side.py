"""Forwards of several models at once, each on its share of a CPU's threads."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from queue import SimpleQueue
from threading import Thread, main_thread
from typing import TypeVar

import torch

from ..streams.lean import LeanBackbone
from ..streams.row_stream import RowStream
from ..streams.stream import Stream

T = TypeVar("T")

LARGEST_RATIO = 1.5
"""Largest ratio of the sizes of models whose forwards share the threads evenly. Were all work
products that any number of threads divides, a pair of this ratio would take 2 * 1.5 / (1 + 1.5) =
1.2 times as long as in turns, about what is won where sizes are equal."""


class SideBySide:
    """Runs the forwards of a step: at once where that is faster, else in turns.

    A forward of few rows leaves all threads but one idle between its products, and a product waits
    for the slowest thread. Two lean models on half of the threads each fill these gaps: a step of
    SmolLM2-135M twice, on 2 threads, takes 0.8 to 0.9 of the time of forwards in turns.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        lean = [
            stream
            for stream in streams.values()
            if isinstance(stream, RowStream) and isinstance(stream.backbone, LeanBackbone)
        ]
        sizes = [stream.model.num_parameters() for stream in lean]
        largest = LARGEST_RATIO * min(sizes, default=0)
        self._are_alike = len(sizes) == len(streams) > 1 and max(sizes) <= largest
        self._workers: list[_Worker] = []

    def __call__(self, forwards: Sequence[Callable[[], T]]) -> list[T]:
        """The result of each forward, none of which may change what another one reads."""
        num_threads, is_ending = torch.get_num_threads(), not main_thread().is_alive()
        if not self._are_alike or len(forwards) < 2 or num_threads % len(forwards) or is_ending:
            return [forward() for forward in forwards]
        self._workers += [_Worker() for _ in forwards[len(self._workers) :]]
        futures: list[Future[T]] = []
        try:
            for worker, forward in zip(self._workers, forwards, strict=False):
                futures.append(worker.begin(forward, num_threads // len(forwards)))
            return [future.result() for future in futures]
        finally:
            # A forward that fails and an interrupt leave no other one running.
            wait(futures)
            # Threads that the program starts later begin with the number that was set last.
            torch.set_num_threads(num_threads)


class _Worker:
    """A thread that computes one forward after another, and ends with this object.

    Threads of ThreadPoolExecutor take no work once the main thread has ended, though threads that
    it started may still decode. A new thread for each forward would have to start the threads of
    its products first, which takes milliseconds.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=_work, args=(self._calls,), daemon=True).start()

    def begin(self, forward: Callable[[], T], num_threads: int) -> Future[T]:
        """The result of the forward, to come, on so many of torch's threads."""
        future: Future[T] = Future()

        def compute() -> None:
            # Set once a thread: meanwhile threads that the program starts begin with this number.
            if torch.get_num_threads() != num_threads:
                torch.set_num_threads(num_threads)
            try:
                future.set_result(forward())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(compute)
        return future

    def __del__(self) -> None:
        self._calls.put(None)


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while call := calls.get():
        call()
        del call  # or it would keep the batch, and with it this thread
