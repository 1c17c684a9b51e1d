"""Time of work: one stopwatch, works that take turns, and how far their runs lie apart."""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final, Literal, TypeVar

import torch

T = TypeVar("T")
Clock = Callable[[], float]
WALL: Final[Clock] = time.perf_counter
THREAD: Final[Clock] = time.thread_time
"""Processor time of this thread alone."""
CLOCKS: Final[dict[Literal["wall", "cpu"], Clock]] = {"wall": WALL, "cpu": time.process_time}
"""Clocks by what options call them; cpu is the processor time of all threads, which other programs
disturb little."""


def timed(
    work: Callable[[], T], clock: Clock = WALL, *, device: torch.device | str = "cpu"
) -> tuple[float, T]:
    """(seconds, result) of `work`, the device's queue empty before and after it."""
    start = _now(clock, torch.device(device))
    result = work()
    return _now(clock, torch.device(device)) - start, result


def _now(clock: Clock, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock()


def in_turns(works: Mapping[str, Callable[[], T]], runs: int) -> dict[str, list[T]]:
    """Figures of every work in each run, after a warm-up of each; in a run they follow each other.

    works: do their work and return its figures, as the seconds that count.
    """
    for work in works.values():
        work()
    measured = [{name: work() for name, work in works.items()} for _ in range(runs)]
    return {name: [figures[name] for figures in measured] for name in works}


def deviation(values: Sequence[float]) -> float:
    """Sample standard deviation; nan of one value."""
    return statistics.stdev(values) if len(values) > 1 else math.nan


def times_baseline(values: Sequence[float], baseline: Sequence[float]) -> tuple[float, float]:
    """(mean ratio to the baseline in the same run, the deviation of that).

    What slows a whole run leaves its ratios as they are.
    """
    ratios = [value / other for value, other in zip(values, baseline, strict=True)]
    return statistics.mean(ratios), deviation(ratios)


def ratio_cells(values: Sequence[float], baseline: Sequence[float], decimals: int = 2) -> list[str]:
    """`times_baseline` as two cells of a table."""
    return [f"{number:.{decimals}f}" for number in times_baseline(values, baseline)]


def print_table(
    titles: Iterable[str], rows: Iterable[Iterable[str]], width: int, *, name_width: int = 0
) -> None:
    """Print a benchmark's titles, and its rows as they are measured.

    width: of every cell, aligned to the right; name_width: of the first, to the left.
    """
    for name, *others in chain([titles], rows):
        first = f"{name:<{name_width}}" if name_width else f"{name:>{width}}"
        print(first + "".join(f"{cell:>{width}}" for cell in others), flush=True)
