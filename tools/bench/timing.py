"""Time of work: one stopwatch, works that take turns, and how far their runs lie apart."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import torch

T = TypeVar("T")
Clock = Callable[[], float]
WALL: Final[Clock] = time.perf_counter
PROCESS: Final[Clock] = time.process_time
"""Processor time of all threads: what other programs do disturbs it little."""
THREAD: Final[Clock] = time.thread_time
"""Processor time of this thread alone."""


class Stopwatch:
    """Seconds of a with-block, the device's queue empty before and after it."""

    def __init__(self, clock: Clock = WALL, *, device: torch.device | str = "cpu") -> None:
        self._clock = clock
        self._device = torch.device(device)
        self.seconds = math.nan

    def __enter__(self) -> "Stopwatch":
        self._start = self._now()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = self._now() - self._start

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()


def timed(
    work: Callable[[], T], clock: Clock = WALL, *, device: torch.device | str = "cpu"
) -> tuple[float, T]:
    """(seconds, result) of `work`."""
    with Stopwatch(clock, device=device) as watch:
        result = work()
    return watch.seconds, result


def in_turns(works: Mapping[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Seconds of every work in each run, after a warm-up of each; in a run they follow each other.

    works: do their work and return the seconds that count.
    """
    for work in works.values():
        work()
    measured = [{name: work() for name, work in works.items()} for _ in range(runs)]
    return {name: [seconds[name] for seconds in measured] for name in works}


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; nan of one value."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def times_baseline(values: Sequence[float], baseline: Sequence[float]) -> tuple[float, float]:
    """(mean ratio to the baseline in the same run, the deviation of that).

    What slows a whole run leaves its ratios as they are.
    """
    ratios = [own / other for own, other in zip(values, baseline, strict=True)]
    return statistics.mean(ratios), deviation(ratios)


def half_quartile_range(values: Sequence[float]) -> float:
    """Half the range between the quartiles."""
    lower, _, upper = statistics.quantiles(values, n=4)
    return 0.5 * (upper - lower)
