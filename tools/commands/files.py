"""Files that commands write, checked while nothing costly has been imported."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

from anchored.wrong_words import Refused


def check_outputs(config: Any, *outputs: Path | None) -> None:
    """Raise OSError, in one line, unless each path can be written as a new regular file.

    config: a command's options, whose `overwrite` says whether regular files that exist may be
    replaced; an input among them never is. Folders in front of a path need not exist. Raises
    Refused for one path twice.
    """
    paths = [path for path in outputs if path is not None]
    values = (getattr(config, field.name) for field in fields(config))
    named = chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in values)
    inputs = [p.resolve() for p in named if isinstance(p, Path) and all(p is not o for o in paths)]
    for number, path in enumerate(paths):
        if path.resolve() in map(Path.resolve, paths[:number]):
            raise Refused(f"two outputs cannot both be written to {path}")
        with _said_of(path, "written"):
            if path.exists() and path.resolve() in inputs:
                raise FileExistsError(f"{path} cannot be written: the command reads it")
            _check(path, config.overwrite)


@contextmanager
def _said_of(path: Path, done: str) -> Iterator[None]:
    """The system's errors meanwhile are those of a path that cannot be written or made."""
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # one with our words
            raise
        raise OSError(f"{path} cannot be {done}: {error.strerror}") from None


def check_new_folder(folder: Path) -> None:
    """Raise OSError, in one line, unless this folder, which does not exist, can be made."""
    with _said_of(folder, "made"):
        if folder.is_symlink() or folder.exists():
            raise FileExistsError(f"{folder} exists: name a new folder")
        _try(folder)


def numbered(path: Path | None, count: int) -> list[Path | None]:
    """`path` itself for one output; NAME-0.SUFFIX, NAME-1.SUFFIX, ... for several."""
    if path is None or count == 1:
        return [path] * count
    return [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(count)]


def _check(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder, not a file to write")
    if path.is_symlink() or path.exists():
        # What is replaced is the name, so that a device or a link would be lost.
        if path.is_symlink() or not path.is_file():
            raise OSError(f"{path} is not a regular file, and is not replaced by one")
        if not overwrite:
            raise FileExistsError(f"{path} exists: give --overwrite to replace it")
    _try(path)


def _try(path: Path) -> None:
    """Make a file where `path`, or the first folder on the way to it, will stand."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{path.name}.partial"):
        pass  # rights, a file system that is read-only, the length of the name: all show here


def is_first_process() -> bool:
    """Whether this process prints and writes; of several that torchrun started, one does."""
    return os.environ.get("RANK", "0") == "0"
