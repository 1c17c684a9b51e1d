"""Files that commands write, checked while nothing costly has been imported."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from anchored.decode.pair_options import PairNames
from anchored.wrong_words import Refused


def check_outputs(config: Any, *outputs: Path | None) -> None:
    """Raise OSError, in one line, unless each path can be written as a new regular file.

    config: a command's options, whose `overwrite` says whether regular files that exist may be
    replaced. An input of the same command never is: any other path among the options, or a file of
    a model's folder. Folders in front of a path need not exist. Raises Refused for one path twice.
    """
    paths = [path for path in outputs if path is not None]
    inputs = {_identity(file): file for file in _input_files(config, paths) if file.is_file()}
    for number, path in enumerate(paths):
        if path.resolve() in map(Path.resolve, paths[:number]):
            raise Refused(f"two outputs cannot both be written to {path}")
        with _said_of(path, "written"):
            if path.exists() and (read := inputs.get(_identity(path))):
                raise FileExistsError(f"{path} cannot be written: the command reads {read}")
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


def _input_files(config: Any, outputs: list[Path]) -> Iterator[Path]:
    """Every file that a command's options name but for its outputs, and those of model folders."""
    models = config.locations.values() if isinstance(config, PairNames) else ()
    for folder in (Path(model).expanduser() for model in models):
        if (folder / "config.json").is_file():
            yield from folder.iterdir()
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
