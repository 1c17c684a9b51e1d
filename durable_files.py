"""Files and folders that appear whole or not at all, locks, and hashes of what files hold."""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_HASHING_THREADS = 8


def write_durably(path: Path, text: str) -> None:
    """Replace a UTF-8 text file in one step: readers and a crash see the old text or the new one.

    Two processes must not write the same file at once.
    """
    with new_file(path) as partial:
        partial.write_bytes(text.encode())


@contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Whether this file is ours: nobody else can hold it while the context lasts.

    The system ends it with the process. waits: until nobody else holds it; else False is said.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A file to write, which gets its name when the context ends without an error."""
    partial = partial_path(path)
    yield partial
    with partial.open("rb+") as file:
        sync(file)
    partial.replace(path)
    sync_folder(path.parent)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the context ends without an error.

    What a process that was killed left of it is removed. The caller has checked that no folder of
    that name exists.
    """
    partial = partial_path(path)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    yield partial
    for file in partial.rglob("*"):
        if file.is_file():
            with file.open("rb+") as written:
                sync(written)
    os.replace(partial, path)
    sync_folder(path.parent)


def partial_path(path: Path) -> Path:
    """Where something is written until it is whole."""
    return path.with_name(f"{path.name}.partial")


def sync(file: BinaryIO) -> None:
    """Wait until what was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, which a rename alone may not be."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(paths: Iterable[Path]) -> list[str]:
    """`file_sha256` of each, in their order, several at a time."""
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashlib lets go of Python's lock
        return list(pool.map(file_sha256, paths))
