"""What a user hands in: files, JSON objects, prompts, numbers; and how what is wrong is named."""

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from .field_types import field_error

STDIN = Path("-")
MAX_SEED = 2**63
"""Seeds lie below it, as `decode.engine.request` has it, which imports torch."""
MAX_NATS = 2.0**20
"""The largest k, `BUDGET_CAP` of `kernels.spend`, which imports torch."""


def check_input(path: Path | None, kind: Literal["file", "folder"] = "file") -> None:
    """Raise FileNotFoundError, in one line, for a path that is none of these; None is no path."""
    if path is not None and not (path.is_file() if kind == "file" else path.is_dir()):
        where = f"{path} is no {kind}" if path.exists() else f"there is no {kind} {path}"
        raise FileNotFoundError(where)


def check_least(options: object, least: int, *names: str) -> None:
    """Raise ValueError, by its option, for a field below `least`; a tuple holds several numbers,
    None is none."""
    for name in names:
        value = getattr(options, name)
        for number in value if isinstance(value, tuple) else (value,):
            if number is not None and not number >= least:  # so is NaN refused
                raise ValueError(f"--{name.replace('_', '-')} must be >= {least}, got {number}")


def json_objects(file: Path) -> list[tuple[int, dict[str, Any]]]:
    """The objects of a file, or of stdin for "-", each with the number of its line, from 1.

    In an array, it is the number of the object. Raises OSError, or ValueError that names the file
    and the line.
    """
    name = file_title(file)
    try:  # a byte order mark is what some editors put in front of a file
        text = sys.stdin.read() if file == STDIN else file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error.reason}") from None
    if text.lstrip().startswith("["):
        numbered = list(enumerate(_parsed(text, name), 1))
    else:  # not splitlines: JSON strings may hold other separators of lines, as U+2028
        lines = enumerate(text.split("\n"), 1)
        numbered = [(n, _parsed(line, f"{name}, line {n}")) for n, line in lines if line.strip()]
    for number, value in numbered:
        if not isinstance(value, dict):
            raise ValueError(f"{name}, row {number} must be a JSON object")
    return numbered


def file_title(file: Path) -> str:
    """The name of a file in messages."""
    return "stdin" if file == STDIN else str(file)


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLine:
    """A prompt or a conversation, and what it has of its own."""

    prompt: str = ""
    messages: list[Any] | None = None
    id: str | int | None = None
    """The caller's name for it, which its results bear."""
    seed: int | None = None
    k: float | None = None
    passage: str | None = None
    """Text that some streams of a rule read before the prompt, as `anchored retrieve` found it."""
    passage_id: str | int | None = None
    """Its name in the corpus."""
    score: float | None = None
    """How well it matched the prompt."""

    def record(self) -> dict[str, Any]:
        """The values that were given, as JSON has them."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def read_prompts(
    file: Path, *, holds: Literal["prompt", "messages"] = "prompt"
) -> list[PromptLine]:
    """The prompts of a file, or of stdin for "-", one JSON object a line.

    holds: what each line has, not the other. Raises OSError, or ValueError that names the file and
    the line.
    """
    name = file_title(file)
    lines = [_prompt(row, f"{name}, line {n}", holds) for n, row in json_objects(file)]
    if not lines:
        raise ValueError(f"{name} holds no {holds.removesuffix('s')}s")
    return lines


def _prompt(record: dict[str, Any], where: str, holds: str) -> PromptLine:
    if not record.get(holds):
        raise ValueError(f'{where} must be an object with a "{holds}"')
    other = "messages" if holds == "prompt" else "prompt"
    known = [field.name for field in fields(PromptLine) if field.name != other]
    if unknown := [key for key in record if key not in known]:
        raise ValueError(f"{where} has an unknown key {unknown[0]!r}; known: {', '.join(known)}")
    record = {key: value for key, value in record.items() if value is not None}
    seed, k = record.get("seed", 0), record.get("k", 0)
    if type(seed) is int and not 0 <= seed < MAX_SEED:
        raise ValueError(f"{where}: seed must be in [0, 2**63), got {seed}")
    if type(k) in (int, float) and not 0 <= k <= MAX_NATS:  # so is NaN refused
        raise ValueError(f"{where}: k must be in [0, {MAX_NATS:.0f}] nats, got {k}")
    if error := field_error(PromptLine, record):
        raise ValueError(f"{where}: {error}")
    return PromptLine(**record)
