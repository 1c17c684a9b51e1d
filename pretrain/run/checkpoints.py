"""Checkpoints of a run: which there are and which are whole; saving, loading and deleting them.

A checkpoint is the folder step-N. The last file written into it is its seal, the sha256 of all
others. What differs from its seal is set aside under another name, never deleted.
"""

import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

from ...durable_files import files_sha256, sync_folder, write_durably

if TYPE_CHECKING:
    from ..job_config import Checkpoint  # imports torchtitan, which export does without

SEAL_NAME = "sha256.json"
_SCHEMA = "anchored-checkpoint/1"
_STEP_NAME = re.compile(r"step-(\d+)")
BYTES_PER_PARAMETER = 12
"""Bytes of a checkpoint: weights and the two moments of AdamW in float32."""
SLOW_DISK_BYTES_PER_S = 100e6
"""Speed of a network's disk that many share."""
OPTIMIZER = "optimizer"
_RETRY_SECONDS = 60.0  # a disk that is full is tried again, not at every step
logger = logging.getLogger(__name__)


def checkpoint_step(checkpoint: Path) -> int:
    """The step N of a folder step-N. Raises ValueError for any other name."""
    if not (match := _STEP_NAME.fullmatch(checkpoint.name)):
        raise ValueError(f"{checkpoint} is not a checkpoint: its name must be step-N")
    return int(match[1])


def checkpoint_steps(folder: Path) -> dict[int, Path]:
    """Folders step-N by their step, in ascending order, whole or not."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return dict(
        sorted((checkpoint_step(one), one) for one in paths if _STEP_NAME.fullmatch(one.name))
    )


def sealed_steps(folder: Path) -> dict[int, Path]:
    """`checkpoint_steps` that were finished; their contents are not looked at."""
    steps = checkpoint_steps(folder)
    return {step: path for step, path in steps.items() if (path / SEAL_NAME).is_file()}


def seal(checkpoint: Path) -> None:
    """Finish a checkpoint whose files are all on the disk: write down their hashes."""
    paths = sorted(path for path in checkpoint.iterdir() if path.name != SEAL_NAME)
    hashes = dict(zip((path.name for path in paths), files_sha256(paths), strict=True))
    text = json.dumps({"schema": _SCHEMA, "files": hashes}, indent=2) + "\n"
    write_durably(checkpoint / SEAL_NAME, text)
    sync_folder(checkpoint.parent)


def damage(checkpoint: Path) -> str | None:
    """Say what differs from the seal of a checkpoint, all of which is read; None if it is whole."""
    try:
        hashes = json.loads((checkpoint / SEAL_NAME).read_bytes())["files"]
        actual = files_sha256(checkpoint / name for name in hashes)
    except FileNotFoundError as error:
        return f"it has no {Path(error.filename).name}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"it cannot be read: {error!r}"
    changed = [name for name, sha256 in zip(hashes, actual, strict=True) if sha256 != hashes[name]]
    return f"{changed[0]} is not what was written" if changed else None


def set_aside(path: Path) -> Path:
    """Give a folder that is not whole a name that no run resumes from, and return it."""
    names = (f"{path.name}.torn" + (f"-{number}" if number > 1 else "") for number in count(1))
    target = next(new for new in map(path.with_name, names) if not new.exists())
    os.replace(path, target)
    return target


class Checkpointer:
    """Saves a run's model and states by steps and by wall-clock minutes, sealed, and loads them.

    The first step is saved, so that what cannot be saved shows in minutes; then every `interval`
    steps, and after `interval_minutes` without a save. Of the saved steps the last `keep_latest_k`
    are kept, and all multiples of `milestone_interval`. `is_time_up` is of one process: `save` must
    get what all of them agreed on.
    A save that fails, on a full disk perhaps, ends nothing: `failure` says why, the part of it that
    was written is deleted, and time is up again a minute later.
    """

    def __init__(
        self,
        config: "Checkpoint",
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
        self._delete(*self._folder.glob("step-*.stale"))

    @property
    def is_time_up(self) -> bool:
        """True if this process has gone too long without a save that succeeded."""
        elapsed = time.monotonic() - self._last_save_time
        if self.failure is not None:
            return elapsed >= _RETRY_SECONDS
        return 0 < self._config.interval_minutes * 60 <= elapsed

    def load(self) -> None:
        """Load the last sealed checkpoint, else the weights to start with, where there are any.

        Of another run's checkpoint come only the weights, and the moments where they are kept: the
        settings of the optimizer come with these, so the caller sets them again.
        """
        last_steps = [max(sealed_steps(self._folder), default=0)]
        dist.broadcast_object_list(last_steps, src=0)
        if last_steps[0]:
            checkpoint, states = self._folder / f"step-{last_steps[0]}", self._states
        elif self._config.initial_load_path:
            checkpoint = Path(self._config.initial_load_path)
            kept = (OPTIMIZER,) if self._config.keep_moments else ()
            states = {name: self._states[name] for name in kept}
        else:
            return
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
        # 3. Older ones go only now, so that a save that fails costs none of them; one that is being
        # written is none of the last ones yet. Renamed first, so that no kill leaves a part of one.
        if self._config.keep_latest_k and dist.get_rank() == 0:
            folders, milestone = sealed_steps(self._folder), self._config.milestone_interval
            for old in list(folders)[: -self._config.keep_latest_k]:
                if not milestone or old % milestone:
                    self._delete(folders[old].rename(folders[old].with_suffix(".stale")))

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
        step = checkpoint_step(checkpoint)
        logger.warning("step %d could not be saved (%s): trying again", step, self.failure)
        if dist.get_rank() == 0:  # it was never whole, and takes the room that the next one needs
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _delete(self, *folders: Path) -> None:
        if dist.get_rank() == 0:
            for folder in folders:
                self._background.submit(shutil.rmtree, folder, ignore_errors=True)

    def close(self) -> None:
        """Wait for all that is being written and deleted."""
        self.wait_for_saves()
        self._background.shutdown()
