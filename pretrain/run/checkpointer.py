"""When a run saves, that only finite and whole checkpoints stand, and which are deleted."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncSaveResponse
from torchtitan.components.checkpoint import OPTIMIZER, AsyncMode, CheckpointManager

from ..job_config import Checkpoint
from .checkpoints import checkpoint_step, seal, sealed_steps, stale_steps

logger = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0  # a disk that is full is asked again, not at every step


class RunCheckpointer(CheckpointManager):
    """torchtitan's checkpoints, sealed, with saves by wall-clock minutes and milestones that stay.

    A save is due every `interval` steps, and after `interval_minutes` without one. Of the saved
    steps the last `keep_latest_k` are kept, and all multiples of `milestone_interval`. Whether
    time is up is a claim of one process: `save` must be told what all of them agreed on.
    A save that fails, on a full disk perhaps, ends nothing: `failure` says why, the part of it that
    was written is deleted, and time is up again a minute later.
    """

    def __init__(
        self,
        checkpoint_config: Checkpoint,
        *,
        before_save: Callable[[], None] = lambda: None,
        **components: Any,
    ) -> None:
        """before_save: called on all processes; what it raises refuses a state to be saved."""
        self._before_save = before_save
        super().__init__(checkpoint_config=checkpoint_config, **components)
        self._keep_moments = checkpoint_config.keep_moments
        self._milestone_interval = checkpoint_config.milestone_interval
        self._interval_seconds = checkpoint_config.interval_minutes * 60
        self._last_save_time = time.monotonic()
        self._is_due = False
        self.failure: str | None = None
        """Why the last save of this process failed; None while it has not."""
        self._finisher = ThreadPoolExecutor(1)
        for left in Path(self.folder).glob("step-*.stale"):
            if dist.get_rank() == 0:
                shutil.rmtree(left, ignore_errors=True)

    @property
    def is_time_up(self) -> bool:
        """Whether this process has gone too long without a save that succeeded."""
        elapsed = time.monotonic() - self._last_save_time
        if self.failure is not None:
            return elapsed >= _RETRY_SECONDS
        return 0 < self._interval_seconds <= elapsed

    def save(self, curr_step: int, last_step: bool = False, *, is_due: bool = False) -> None:
        """Save where the step, `is_due` or `last_step` asks for it.

        last_step: nothing follows, so wait until the checkpoint is whole; an asynchronous save
        is left to write itself while training goes on.
        """
        self._is_due = is_due
        super().save(curr_step, last_step)

    def dcp_save(
        self, state_dict: dict[str, Any], checkpoint_id: str, async_mode: AsyncMode, **options: Any
    ) -> Any:
        """Write a checkpoint and seal it; failures go into `failure`, on every process.

        What one process could not write, all of them learn from torch; the seal is the first's.
        """
        self._before_save()
        self.failure = None
        checkpoint = Path(checkpoint_id)
        try:
            saved = super().dcp_save(state_dict, checkpoint_id, async_mode, **options)
        except (CheckpointException, OSError) as error:
            self._fail(checkpoint, error)
            return None
        if isinstance(saved, AsyncSaveResponse):
            saved.upload_completion = self._finisher.submit(
                self._finish, checkpoint, saved.upload_completion
            )
        elif isinstance(saved, Future):
            return self._finisher.submit(self._finish, checkpoint, saved)
        else:
            self._finish(checkpoint)
        return saved

    def wait_for_saves(self) -> None:
        """Until what is being written is sealed, or has failed."""
        self._async_wait()

    def _finish(self, checkpoint: Path, written: Future[None] | None = None) -> None:
        try:
            if written is not None:
                written.result()
            if dist.get_rank() == 0:
                seal(checkpoint)
        except (CheckpointException, OSError) as error:
            self._fail(checkpoint, error)

    def _fail(self, checkpoint: Path, error: BaseException) -> None:
        if isinstance(error, CheckpointException):
            error = next(cause for cause, _ in error.failures.values())
        self.failure = str(error).partition("\n")[0]
        logger.warning(
            "step %d could not be saved (%s): trying again",
            checkpoint_step(checkpoint),
            self.failure,
        )
        if dist.get_rank() == 0:  # it was never whole, and takes the room that the next one needs
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _should_save(self, curr_step: int, last_step: bool = False) -> bool:
        should_save = super()._should_save(curr_step, last_step) or self._is_due
        if should_save:
            self._last_save_time = time.monotonic()
        return should_save

    def _find_load_step(self, folder: str = "") -> int:
        """The first process looks, after the preflight has set aside what is not whole."""
        found = [max(sealed_steps(folder or self.folder), default=-1)]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def _states_to_load(self, model_only: bool) -> dict[str, Any]:
        """Of another run's checkpoint only the weights, and the moments where they are kept.

        The settings of the optimizer come with its moments; whoever loads sets its own.
        """
        states: dict[str, Any] = super()._states_to_load(model_only)
        if model_only and self._keep_moments:
            states = {**states, OPTIMIZER: self.states[OPTIMIZER]}
        return states

    def _purge_stale_checkpoints(self) -> None:
        if self.keep_latest_k == 0 or dist.get_rank() != 0:
            return
        # One that is being written, or could not be, is none of the last ones yet.
        folders = sealed_steps(self.folder)
        for step in stale_steps(
            folders, keep_latest=self.keep_latest_k, milestone_interval=self._milestone_interval
        ):
            stale = folders[step].with_suffix(".stale")  # so that no kill leaves a part of it
            os.replace(folders[step], stale)
            self.purge_queue.put(str(stale))

    def close(self) -> None:
        super().close()
        if hasattr(self, "_finisher"):
            self._finisher.shutdown()
