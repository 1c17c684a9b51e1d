"""When checkpoints of a run are saved, and which of them are kept."""

import time
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torchtitan.components.checkpoint import CheckpointManager

from ..job_config import Checkpoint
from .record import checkpoint_steps


class RunCheckpointer(CheckpointManager):
    """torchtitan's checkpoints, with saves by wall-clock minutes and milestones that stay.

    A save is due every `interval` steps, and after `interval_minutes` without one. Of the saved
    steps the last `keep_latest_k` are kept, and all multiples of `milestone_interval`. Whether
    time is up is a claim of one process: `save` must be told what all of them agreed on.
    """

    def __init__(self, checkpoint_config: Checkpoint, **components: Any) -> None:
        super().__init__(checkpoint_config=checkpoint_config, **components)
        self._milestone_interval = checkpoint_config.milestone_interval
        self._interval_seconds = checkpoint_config.interval_minutes * 60
        self._last_save_time = time.monotonic()
        self._is_due = False

    @property
    def is_time_up(self) -> bool:
        """Whether this process has gone `interval_minutes` without a save."""
        elapsed = time.monotonic() - self._last_save_time
        return 0 < self._interval_seconds <= elapsed

    def save(self, curr_step: int, last_step: bool = False, *, is_due: bool = False) -> None:
        """Save where the step, `is_due` or `last_step` asks for it.

        last_step: nothing follows, so wait until the checkpoint is whole; an asynchronous save
        is left to write itself while training goes on.
        """
        self._is_due = is_due
        super().save(curr_step, last_step)

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        should_save = super()._should_save(curr_step, last_step) or self._is_due
        if should_save:
            self._last_save_time = time.monotonic()
        return should_save

    def _purge_stale_checkpoints(self) -> None:
        if self.keep_latest_k == 0 or dist.get_rank() != 0:
            return
        folders = checkpoint_steps(self.folder)
        for step in stale_steps(
            folders, keep_latest=self.keep_latest_k, milestone_interval=self._milestone_interval
        ):
            self.purge_queue.put(str(folders[step]))


def stale_steps(steps: Iterable[int], *, keep_latest: int, milestone_interval: int) -> list[int]:
    """The steps whose checkpoints can go: neither among the last ones nor milestones.

    keep_latest: at least 1. milestone_interval: in steps; 0 makes no step a milestone.
    """
    return [
        step
        for step in sorted(steps)[:-keep_latest]
        if not milestone_interval or step % milestone_interval
    ]
