"""Going back to an earlier checkpoint and on by another way, which every later start follows.

A fork is recorded in run.json: the step gone back to, how many steps' data are left out from there,
and which settings change. Step numbers, weights, moments and the place in the data are kept.
"""

import os
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from ...durable_files import sync_folder
from .checkpoints import checkpoint_steps, damage
from .record import RECORD_NAME, RunRecord, lock_run

SECTIONS = ("optimizer.", "lr_scheduler.", "spike_guard.", "training.max_norm")
"""Settings that may change on the way: they decide nothing about what is in a checkpoint."""
_ASIDE_NAME = "abandoned-"
_KEPT_FILES = (RECORD_NAME, "metrics.jsonl", "heldout.jsonl", "spikes.jsonl")


@dataclass(frozen=True, slots=True)
class Rollback:
    """What was done, for the user."""

    step: int
    aside: Path
    """Folder of the later checkpoints, and of the record and curves as they were."""
    num_moved: int


def roll_back(
    run: Path, *, step: int, skip_steps: int = 0, settings: Mapping[str, str] | None = None
) -> Rollback:
    """Make the run go on after `step`, with later checkpoints moved aside.

    skip_steps: data of so many steps that is never read, from this step on.
    settings: TOML values by dotted names, from here on in place of the config's. What was forked at
    or after this step before is undone.
    Raises: ValueError, before anything is changed, if the run is at work, has no whole checkpoint
    of this step, or a setting cannot change.
    """
    if skip_steps < 0:
        raise ValueError(f"skip_steps must be at least 0, got {skip_steps}")
    record = _without_forks_from(RunRecord.read(run), step)
    with lock_run(run):
        folder = _checkpoint_folder(run, step)
        if reason := damage(folder / f"step-{step}"):
            raise ValueError(f"{folder / f'step-{step}'} is not whole: {reason}")
        changes = _changes(record, settings or {})
        fork = {"step": step, "skip_steps": skip_steps, "settings": changes}
        # The record last: a kill before it leaves a run that this command can go back again.
        aside, num_moved = _move_aside(run, folder, step)
        forks = [*record.forks, fork]
        _forked(replace(record, forks=forks)).write(run)
    return Rollback(step, aside, num_moved)


def _without_forks_from(record: RunRecord, step: int) -> RunRecord:
    """The record as it was before any fork at or after a step."""
    identity = dict(record.identity)
    for fork in reversed(record.forks):
        if fork["step"] >= step:
            identity |= {name: before for name, (before, _) in fork["settings"].items()}
    kept = [fork for fork in record.forks if fork["step"] < step]
    return replace(record, identity=identity, forks=kept)


def _forked(record: RunRecord) -> RunRecord:
    """The record with what its last fork changes."""
    after = {name: new for name, (_, new) in record.forks[-1]["settings"].items()}
    return replace(record, identity=record.identity | after, data=record.forked_data(record.data))


def _changes(record: RunRecord, settings: Mapping[str, str]) -> dict[str, tuple[Any, Any]]:
    changes = {}
    for name, text in settings.items():
        if name not in record.identity or not name.startswith(SECTIONS):
            known = [key for key in record.identity if key.startswith(SECTIONS)]
            raise ValueError(f"{name} cannot change within a run; what can: {', '.join(known)}")
        before, after = record.identity[name], _value(name, text)
        if isinstance(before, float) and isinstance(after, int):
            after = float(after)
        if before is not None and type(after) is not type(before):
            raise ValueError(f"{name} is {before}, which {after!r} cannot take the place of")
        changes[name] = (before, after)
    return changes


def _value(name: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if not text.isidentifier():
            raise ValueError(f"{name}: {text!r} is no value of TOML") from None
        return text  # a word needs no quotes on a command line


def _checkpoint_folder(run: Path, step: int) -> Path:
    folders: dict[int, Path] = {}
    for path in run.iterdir():
        if not path.name.startswith(_ASIDE_NAME):
            folders |= dict.fromkeys(checkpoint_steps(path), path)
    if step not in folders:
        listed = ", ".join(map(str, sorted(folders))) or "none"
        raise ValueError(f"{run} has no checkpoint of step {step}; there are: {listed}")
    return folders[step]


def _move_aside(run: Path, folder: Path, step: int) -> tuple[Path, int]:
    names = (run / f"{_ASIDE_NAME}{number}" for number in count(1))
    aside = next(path for path in names if not path.exists())
    aside.mkdir()
    for name in _KEPT_FILES:
        if (run / name).exists():
            shutil.copy2(run / name, aside / name)
    later = [path for number, path in checkpoint_steps(folder).items() if number > step]
    for path in reversed(later):
        os.replace(path, aside / path.name)
    sync_folder(folder)
    return aside, len(later)
