"""Files that a command is to write, checked before its work begins."""

import tempfile
from pathlib import Path


def check_outputs(*paths: Path | None, overwrite: bool) -> None:
    """Raise ValueError, in one line, unless each path can be written as a new regular file.

    overwrite: regular files that exist may be replaced. Folders in front of a path need not exist.
    """
    seen: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        if path in seen:
            raise ValueError(f"two outputs cannot both be written to {path}")
        seen.add(path)
        try:
            _check(path, overwrite)
        except OSError as error:
            raise ValueError(f"{path} cannot be written: {error.strerror}") from None


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
