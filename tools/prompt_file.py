"""Prompts from a file of JSON lines, or from stdin."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STDIN = Path("-")
KINDS: dict[str, tuple[type, ...]] = {
    "prompt": (str,),
    "id": (str, int),
    "seed": (int,),
    "k": (int, float),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptLine:
    """A prompt, and what it has of its own."""

    prompt: str
    id: str | int | None = None
    """The caller's name for it, which its results bear."""
    seed: int | None = None
    k: float | None = None


def read_prompts(file: Path) -> list[PromptLine]:
    """The prompts of a file, one JSON object a line; blank lines are left out.

    file: "-" is stdin. Raises OSError, or ValueError that names the file and the line.
    """
    name = "stdin" if file == STDIN else str(file)
    try:
        text = sys.stdin.read() if file == STDIN else file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error.reason}") from None
    # Not splitlines: JSON strings may hold other separators of lines, as U+2028.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{name} holds no prompts")
    return [_parsed(line, f"{name}, line {number}") for number, line in lines]


def _parsed(line: str, place: str) -> PromptLine:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{place} is not JSON: {error}") from None
    if not isinstance(record, dict) or not record.get("prompt"):
        raise ValueError(f'{place} must be an object with a "prompt"')
    for key, value in record.items():
        _check(key, value, place)
    return PromptLine(**record)


def _check(key: str, value: Any, place: str) -> None:
    if key not in KINDS:
        raise ValueError(f"{place} has an unknown key {key!r}; known: {', '.join(KINDS)}")
    if not isinstance(value, KINDS[key]) or isinstance(value, bool):
        allowed = " or ".join(kind.__name__ for kind in KINDS[key])
        raise ValueError(f"{place}: {key} must be of type {allowed}, got {value!r}")
