"""Checkpoints on disk: which there are, which are whole, and what becomes of the others.

A checkpoint is the folder step-N. The last file written into it is its seal, the sha256 of all
others. What differs from its seal is set aside under another name, never deleted.
"""

import json
import os
import re
from itertools import count
from pathlib import Path

from ...durable_files import files_sha256, sync_folder, write_durably

SEAL_NAME = "sha256.json"
_SCHEMA = "anchored-checkpoint/1"
_STEP_NAME = re.compile(r"step-(\d+)")


def checkpoint_step(checkpoint: Path) -> int:
    """The step N of a folder step-N. Raises ValueError for any other name."""
    if not (match := _STEP_NAME.fullmatch(checkpoint.name)):
        raise ValueError(f"{checkpoint} is not a checkpoint: its name must be step-N")
    return int(match[1])


def checkpoint_steps(folder: Path | str) -> dict[int, Path]:
    """Folders step-N by their step, in ascending order, whole or not."""
    folder = Path(folder)
    if not folder.is_dir():
        return {}
    matches = [(_STEP_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def sealed_steps(folder: Path | str) -> dict[int, Path]:
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
    """Say what differs from the seal of a checkpoint; None if it is whole.

    Reads all of it.
    """
    try:
        table = json.loads((checkpoint / SEAL_NAME).read_bytes())
        if table["schema"] != _SCHEMA:
            return f"{SEAL_NAME} is of another schema"
        names, expected = list(table["files"]), list(table["files"].values())
        if missing := [name for name in names if not (checkpoint / name).is_file()]:
            return f"{missing[0]} is missing"
        actual = files_sha256(checkpoint / name for name in names)
    except FileNotFoundError:
        return f"it has no {SEAL_NAME}"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{SEAL_NAME} is damaged"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    changed = [
        name for name, *pair in zip(names, expected, actual, strict=True) if len({*pair}) > 1
    ]
    return f"{changed[0]} is not what was written" if changed else None


def was_finished(folder: Path) -> bool:
    """True if a folder of checkpoints holds any that once was whole, damaged or set aside since.

    A run that was killed while it sealed its first checkpoint never had one.
    """
    return any((path / SEAL_NAME).exists() for path in folder.iterdir())


def set_aside(path: Path) -> Path:
    """Give a folder that is not whole a name that no run resumes from, and return it."""
    names = (f"{path.name}.torn" + (f"-{number}" if number > 1 else "") for number in count(1))
    target = next(new for new in map(path.with_name, names) if not new.exists())
    os.replace(path, target)
    return target


def last_complete(checkpoint: Path, num_wanted: int) -> list[Path]:
    """A checkpoint and the whole ones before it, `num_wanted` together, in ascending order.

    Raises: ValueError if it is not whole, or if there are fewer.
    """
    if reason := damage(checkpoint):
        raise ValueError(f"{checkpoint} is not a complete checkpoint: {reason}")
    whole = [checkpoint]
    earlier = [
        path
        for step, path in sealed_steps(checkpoint.parent).items()
        if step < checkpoint_step(checkpoint)
    ]
    while earlier and len(whole) < num_wanted:
        if damage(path := earlier.pop()) is None:
            whole.insert(0, path)
    if num_wanted < 1 or len(whole) < num_wanted:
        raise ValueError(
            f"{checkpoint.parent} has {len(whole)} complete checkpoints up to {checkpoint.name}, "
            f"and {num_wanted} were asked for"
        )
    return whole
