"""Saving of a run: when, of finite and whole checkpoints only, and which are deleted."""

import logging
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.checkpoint.stateful import Stateful

from ..job_config import Checkpoint
from .checkpoints import checkpoint_step, seal, sealed_steps

logger = logging.getLogger(__name__)
_RETRY_SECONDS = 60.0  # a disk that is full is asked again, not at every step
# A last save that fails is tried again after these pauses: they fit into Slurm's notice of ten
# minutes, and room may be made meanwhile.
LAST_SAVE_PAUSES_S = (5.0, 30.0, 120.0)
BYTES_PER_PARAMETER = 12
"""Bytes of a checkpoint: weights and the two moments of AdamW in float32."""
_SLOW_DISK_BYTES_PER_S = 100e6  # a network's disk that many share
OPTIMIZER = "optimizer"


def longest_save_s(num_parameters: int) -> float:
    """Seconds for which processes may wait for one that saves, with all of its tries and pauses."""
    seconds = BYTES_PER_PARAMETER * num_parameters / _SLOW_DISK_BYTES_PER_S
    return _RETRY_SECONDS + sum(LAST_SAVE_PAUSES_S) + (1 + len(LAST_SAVE_PAUSES_S)) * seconds


class Checkpointer:
    """Saves a run's model and states by steps and by wall-clock minutes, sealed, and loads them.

    The first step is saved, so that what cannot be saved shows in minutes; then every `interval`
    steps, and after `interval_minutes` without a save. Of the saved steps the last `keep_latest_k`
    are kept, and all multiples of `milestone_interval`. Whether time is up is a claim of one
    process: `save` must get what all of them agreed on.
    A save that fails, on a full disk perhaps, ends nothing: `failure` says why, the part of it that
    was written is deleted, and time is up again a minute later.
    """

    def __init__(
        self,
        config: Checkpoint,
        run_folder: Path,
        *,
        model: torch.nn.Module,
        states: dict[str, Stateful],
        before_save: Callable[[], None] = lambda: None,
    ) -> None:
        """states: saved and loaded with the model's weights, by their names.

        before_save: called on all processes; what it raises refuses a state to be saved.
        """
        self._config, self._folder = config, run_folder / config.folder
        self._model, self._states, self._before_save = model, states, before_save
        self._last_save_time = time.monotonic()
        self.failure: str | None = None
        """Why the last save of this process failed; None while it has not."""
        self._is_async = config.async_mode == "async"
        # The thread that writes must not use the group in which training communicates.
        self._group = dist.new_group(backend="gloo") if self._is_async else None
        self._background = ThreadPoolExecutor(1)
        self._unfinished: Future[None] | None = None
        for left in self._folder.glob("step-*.stale"):
            self._delete(left)

    @property
    def is_time_up(self) -> bool:
        """True if this process has gone too long without a save that succeeded."""
        elapsed = time.monotonic() - self._last_save_time
        if self.failure is not None:
            return elapsed >= _RETRY_SECONDS
        return 0 < self._config.interval_minutes * 60 <= elapsed

    def load(self) -> None:
        """Load the last sealed checkpoint, else the weights to start with, where there are any.

        The first process looks, after the preflight has set aside what is not whole. Of another
        run's checkpoint come only the weights, and the moments where they are kept: the settings
        of the optimizer come with these, so the caller sets them again.
        """
        last_steps = [max(sealed_steps(self._folder), default=0)]
        dist.broadcast_object_list(last_steps, src=0)
        if last_steps[0]:
            self._load(self._folder / f"step-{last_steps[0]}", self._states)
        elif self._config.initial_load_path:
            kept = (OPTIMIZER,) if self._config.keep_moments else ()
            states = {name: self._states[name] for name in kept}
            self._load(Path(self._config.initial_load_path), states)

    def _load(self, checkpoint: Path, states: dict[str, Stateful]) -> None:
        weights = get_model_state_dict(self._model)
        dcp.load({**weights, **states}, checkpoint_id=checkpoint)
        set_model_state_dict(self._model, weights, options=StateDictOptions(strict=True))

    def save(self, step: int, *, is_last: bool = False, is_due: bool = False) -> None:
        """Save where the step, `is_due` or `is_last` asks for it.

        is_last: nothing follows, so wait until the checkpoint is whole; an asynchronous save
        is left to write itself while training goes on.
        """
        if not (is_last or is_due or step == 1 or step % self._config.interval == 0):
            return
        # 1. One save at a time, and none of a state that no run could go on from.
        self._last_save_time = time.monotonic()
        self.wait_for_saves()
        self._before_save()
        self.failure = None
        # 2. Weights and states are written by all processes; the seal follows when they are whole.
        checkpoint = self._folder / f"step-{step}"
        state: dict[str, Any] = {**get_model_state_dict(self._model), **self._states}
        try:
            if self._is_async and not is_last:
                written = dcp.async_save(state, checkpoint_id=checkpoint, process_group=self._group)
                self._unfinished = self._background.submit(self._finish, checkpoint, written)
            else:
                dcp.save(state, checkpoint_id=checkpoint)
                self._finish(checkpoint)
        except (CheckpointException, OSError) as error:
            self._fail(checkpoint, error)
        # 3. Older ones go only now, so that a save that fails costs none of them.
        self._purge()

    def wait_for_saves(self) -> None:
        """Wait until what is being written is sealed, or has failed."""
        if self._unfinished is not None:
            self._unfinished.result()
            self._unfinished = None

    def _finish(self, checkpoint: Path, written: Any = None) -> None:
        try:
            if written is not None:
                written.result()
            if dist.get_rank() == 0:
                seal(checkpoint)
        except (CheckpointException, OSError) as error:
            self._fail(checkpoint, error)

    def _fail(self, checkpoint: Path, error: BaseException) -> None:
        """Note a failure; what one process could not write, all of them learn from torch."""
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

    def _purge(self) -> None:
        if self._config.keep_latest_k == 0 or dist.get_rank() != 0:
            return
        # A checkpoint that is being written, or could not be, is none of the last ones yet.
        folders = sealed_steps(self._folder)
        milestone = self._config.milestone_interval
        for step in list(folders)[: -self._config.keep_latest_k]:
            if not milestone or step % milestone:
                stale = folders[step].with_suffix(".stale")  # so that no kill leaves a part of it
                os.replace(folders[step], stale)
                self._delete(stale)

    def _delete(self, folder: Path) -> None:
        if dist.get_rank() == 0:
            self._background.submit(shutil.rmtree, folder, ignore_errors=True)

    def close(self) -> None:
        """Wait for all that is being written and deleted."""
        self.wait_for_saves()
        self._background.shutdown()
