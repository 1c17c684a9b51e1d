"""Files that commands read and write, checked while nothing costly has been imported."""

import json
import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

STDIN = Path("-")
PROMPT_KINDS: dict[str, tuple[type, ...]] = {
    "prompt": (str,),
    "messages": (list,),
    "id": (str, int),
    "seed": (int,),
    "k": (int, float),
    "passage": (str,),
    "passage_id": (str, int),
    "score": (int, float),
}


def check_input(path: Path | None, kind: Literal["file", "folder"] = "file") -> None:
    """Raise FileNotFoundError, in one line, for a path that is none of these; None is no path."""
    if path is not None and not (path.is_file() if kind == "file" else path.is_dir()):
        where = f"{path} is no {kind}" if path.exists() else f"there is no {kind} {path}"
        raise FileNotFoundError(where)


def check_outputs(*paths: Path | None, overwrite: bool) -> None:
    """Raise ValueError, in one line, unless each path can be written as a new regular file.

    overwrite: regular files that exist may be replaced. Folders in front of a path need not exist.
    """
    given = [path for path in paths if path is not None]
    for number, path in enumerate(given):
        if path in given[:number]:
            raise ValueError(f"two outputs cannot both be written to {path}")
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


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLine:
    """A prompt or a conversation, and what it has of its own."""

    prompt: str = ""
    messages: list[dict[str, str]] | None = None
    id: str | int | None = None
    """The caller's name for it, which its results bear."""
    seed: int | None = None
    k: float | None = None
    passage: str | None = None
    """What some streams of a rule read before the prompt, as `anchored retrieve` found it."""
    passage_id: str | int | None = None
    """Its name in the corpus."""
    score: float | None = None
    """How well it matched the prompt."""

    def record(self) -> dict[str, Any]:
        """What was given, as JSON values."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_prompts(
    file: Path, *, holds: Literal["prompt", "messages"] = "prompt"
) -> list[PromptLine]:
    """The prompts of a file, one JSON object a line; blank lines are left out.

    file: "-" is stdin. holds: what each line has, not the other. Raises OSError, or ValueError
    that names the file and the line.
    """
    name = "stdin" if file == STDIN else str(file)
    try:
        text = sys.stdin.read() if file == STDIN else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error.reason}") from None
    # Not splitlines: JSON strings may hold other separators of lines, as U+2028.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{name} holds no {holds.removesuffix('s')}s")
    return [_parsed(line, f"{name}, line {number}", holds) for number, line in lines]


def _parsed(line: str, place: str, holds: str) -> PromptLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from None
    if not isinstance(record, dict) or not record.get(holds):
        raise ValueError(f'{place} must be an object with a "{holds}"')
    others = {"prompt", "messages"} - {holds}
    for key, value in record.items():
        if key not in PROMPT_KINDS.keys() - others:
            known = ", ".join(kind for kind in PROMPT_KINDS if kind not in others)
            raise ValueError(f"{place} has an unknown key {key!r}; known: {known}")
        if not isinstance(value, PROMPT_KINDS[key]) or isinstance(value, bool):
            allowed = " or ".join(kind.__name__ for kind in PROMPT_KINDS[key])
            raise ValueError(f"{place}: {key} must be of type {allowed}, got {value!r}")
    return PromptLine(**record)


def json_nats(nats: float) -> float | str:
    """The number itself, or "inf" or "-inf", as in ledgers."""
    return nats if math.isfinite(nats) else str(nats)
