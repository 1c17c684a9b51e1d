"""Work that several processes share: a task is claimed by a lock, which dies with its process."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...durable_files import locked

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work that one process does."""

    name: str
    """Of the file that claims it: another one for every task."""
    result: Path
    """A file that is there, whole, once the work is done; looked for before and under the claim."""
    work: Callable[[], None]


def share(tasks: Sequence[Task], claims: Path, *, waits: bool = True) -> None:
    """Do the tasks that no other process has done or is at, in their order.

    claims: a folder that all processes reach, on a file system that locks (flock). A process that
    dies gives back its claim, and another one starts the task again. waits: return once all tasks
    are done; else as soon as none is free.
    """
    has_told = False
    while left := [task for task in tasks if not task.result.exists()]:
        if any([_is_done_here(task, claims) for task in left]):
            continue
        if not waits:
            return
        if not has_told:
            logger.info("waiting for %d tasks of other processes", len(left))
            has_told = True
        time.sleep(POLL_SECONDS)


def _is_done_here(task: Task, claims: Path) -> bool:
    with locked(claims / task.name, waits=False) as is_ours:
        if not is_ours or task.result.exists():
            return False
        task.work()
        return True
