"""Files and folders that appear whole or not at all, locks, and hashes of what files hold."""

import errno
import fcntl
import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

_HASHING_THREADS = 8


def write_durably(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Write a UTF-8 text file in one step: readers and a crash see the old text or the new one.

    overwrite: replace a file of that name; else see `new_file`.
    """
    with new_file(path, overwrite=overwrite) as partial:
        partial.write_bytes(text.encode())


def json_value(value: Any, *, spelled: Callable[[float], object] = str) -> Any:
    """The value with plain dicts and lists, and with what `spelled` makes of each float that JSON
    has no number for: "inf", "-inf" and "nan" by default. A NamedTuple is a dict of its fields."""
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: json_value(item, spelled=spelled) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(item, spelled=spelled) for item in value]
    return spelled(value) if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def locked(path: Path, *, waits: bool = True) -> Iterator[bool]:
    """Lock a file while the context lasts; yields False where another process holds it.

    The system ends the lock with the process. waits: block until it is free, not yield False.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        except OSError as error:  # as on Lustre, unless it is mounted with the option flock
            error.filename = str(path)
            raise
        else:
            yield True


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Any OSError of the context names `path` where it would name no file, as that of a full disk
    does not; what safetensors cannot write is one too."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def appended(path: Path) -> Iterator[BinaryIO]:
    """A file that is open to be written at its end; an OSError names it."""
    with named_errors(path), path.open("ab") as file:
        yield file


@contextmanager
def new_file(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A file to write, which gets its name when the context ends without an error.

    The folder that it lies in is made. Until the end its name is random, so that several
    processes may write one file: the last one to end replaces what the others wrote. Without
    `overwrite`, a file that exists at the end is kept: FileExistsError then names it and the file
    that holds what was written. Any other OSError names `path` where it would name no file, as that
    of a full disk.
    """
    partial = path.with_name(f"{path.name}.partial-{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with named_errors(path):
            yield partial
            with partial.open("rb+") as file:
                sync(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    if overwrite:
        partial.replace(path)
    else:
        _name_once(partial, path)
    sync_folder(path.parent)


def _name_once(partial: Path, path: Path) -> None:
    """Give a whole file its name; FileExistsError where the name is taken."""
    try:
        try:
            os.link(partial, path)  # unlike a rename, this never replaces
            partial.unlink()
        except OSError as error:
            if error.errno == errno.EEXIST:
                raise
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))  # a file system without hard links
            partial.replace(path)
    except FileExistsError:
        message = f"{path} has appeared meanwhile and is kept; {partial} holds what was written"
        raise FileExistsError(message) from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, which gets its name when the context ends without an error.

    What a process that was killed left of it is removed; FileExistsError where another process is
    still filling it. The caller has checked that no folder of that name exists.
    """
    partial = path.with_name(f"{path.name}.partial")
    lock = partial.with_name(f"{partial.name}.lock")
    with locked(lock, waits=False) as is_ours:
        if not is_ours:
            raise FileExistsError(f"another process is writing {path}")
        try:
            if partial.exists():
                shutil.rmtree(partial)
            partial.mkdir(parents=True)
            with named_errors(path):
                yield partial
                for file in partial.rglob("*"):
                    if file.is_file():
                        with file.open("rb+") as written:
                            sync(written)
            os.replace(partial, path)
            sync_folder(path.parent)
        finally:
            lock.unlink()


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


def text_sha256(*texts: str) -> str:
    """Hexadecimal sha256 of texts, and of where each ends."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_sha256(paths: Iterable[Path]) -> list[str]:
    """`file_sha256` of each, in their order, several at a time."""
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:  # hashlib lets go of Python's lock
        return list(pool.map(file_sha256, paths))
