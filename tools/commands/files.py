"""Files that commands write, checked while nothing costly has been imported."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any


def check_outputs(config: Any, *outputs: Path | None) -> None:
    """Raise ValueError, in one line, unless each path can be written as a new regular file.

    config: a command's options, whose `overwrite` says whether regular files that exist may be
    replaced. An input of the same command never is: any other path among the options, or a file of
    a model's folder. Folders in front of a path need not exist.
    """
    paths = [path for path in outputs if path is not None]
    inputs = {_identity(file): file for file in _input_files(config, paths) if file.is_file()}
    for number, path in enumerate(paths):
        if path.resolve() in map(Path.resolve, paths[:number]):
            raise ValueError(f"two outputs cannot both be written to {path}")
        try:
            if path.exists() and (read := inputs.get(_identity(path))):
                raise ValueError(f"{path} cannot be written: the command reads {read}")
            _check(path, config.overwrite)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from None


def _input_files(config: Any, outputs: list[Path]) -> Iterator[Path]:
    """Every file that a command's options name but for its outputs, and those of model folders."""
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from _input_files(value, outputs)
        for path in value if isinstance(value, tuple) else (value,):
            if isinstance(path, Path) and not any(path is output for output in outputs):
                yield path
                if (path / "config.json").is_file():
                    yield from path.iterdir()


def _identity(file: Path) -> tuple[int, int]:
    """The numbers that tell a file from all others, whatever links and folders lead to it."""
    status = file.stat()
    return status.st_dev, status.st_ino


def check_new_folder(folder: Path) -> None:
    """Raise ValueError, in one line, unless this folder, which does not exist, can be made."""
    try:
        if folder.is_symlink() or folder.exists():
            raise ValueError(f"{folder} exists: name a new folder")
        _try(folder)
    except OSError as error:
        raise ValueError(f"{folder} cannot be made: {error.strerror}") from None


def numbered(path: Path | None, count: int) -> list[Path | None]:
    """`path` itself for one output; NAME-0.SUFFIX, NAME-1.SUFFIX, ... for several."""
    if path is None or count == 1:
        return [path] * count
    return [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(count)]


def _check(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file to write")
    if path.is_symlink() or path.exists():
        # What is replaced is the name, so that a device or a link would be lost.
        if path.is_symlink() or not path.is_file():
            raise ValueError(f"{path} is not a regular file, and is not replaced by one")
        if not overwrite:
            raise ValueError(f"{path} exists: give --overwrite to replace it")
    _try(path)


def _try(path: Path) -> None:
    """Make a file where `path`, or the first folder on the way to it, will stand."""
    folder = next(parent for parent in path.absolute().parents if parent.exists())
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{path.name}.partial"):
        pass  # rights, a file system that is read-only, the length of the name: all show here


def is_first_process() -> bool:
    """Whether this process prints and writes; of several that torchrun started, one does."""
    return os.environ.get("RANK", "0") == "0"
