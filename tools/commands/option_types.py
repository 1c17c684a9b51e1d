"""The types of options: the value of a word, and the name that stands for it in a help text."""

import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

from anchored.configs.config_file import find_config
from anchored.decode.settings import MODEL, REPEATED, Speculate

POSITIONAL = "positional"
"""Marks, in Annotated, a word without a flag."""
OUTPUT = "output"
"""Marks the path of a file that is written."""


@dataclass(frozen=True, slots=True)
class Configs:
    """Marks an option that takes the package's configs of a folder which have these keys."""

    folder: str
    keys: tuple[str, ...] = ()


SweepFile = Annotated[Path, Configs("eval", ("methods", "safe"))]
"""A config file, or the name of one of the package's: quickstart-methods."""
ComparisonFile = Annotated[Path, Configs("eval", ("benchmarks",))]
TrainingFile = Annotated[Path, Configs("pretrain")]
OutputFile = Annotated[Path, OUTPUT]
Value = Callable[[str], Any]


def parts(hint: Any) -> tuple[Any, list[Any]]:
    """The plain type of a hint, without None, and its marks."""
    plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    inner = [part for part in get_args(plain) if part is not NoneType]
    if len(inner) == 1 and NoneType in get_args(plain):
        plain, more = parts(inner[0])
        marks += more
    return plain, marks


def is_several(plain: Any, marks: list[Any]) -> bool:
    """Whether an option takes several words at once."""
    return get_origin(plain) is tuple and REPEATED not in marks


def choices(plain: Any) -> tuple[str, ...]:
    """The values of a Literal, of a union of them, or of several of one; () of another type."""
    if get_origin(plain) is Literal:
        return get_args(plain)
    inner = [choices(part) for part in get_args(plain) if part is not Ellipsis]
    return sum(inner, ()) if all(inner) else ()


def value_of(plain: Any, marks: list[Any]) -> tuple[str, Value]:
    """The name of an option's values, as INT, {kl,max} or PATH, and what makes one of a word."""
    if get_origin(plain) is tuple:
        inner, more = parts(get_args(plain)[0])
        return value_of(inner, [*marks, *more])
    if MODEL in marks:
        return "FOLDER|ID", _text
    if OUTPUT in marks:
        return "FILE", _file_to_write
    for mark in marks:
        if isinstance(mark, Configs):
            return "FILE|NAME", _config
        if isinstance(mark, tuple):  # some names, and perhaps more
            return f"{{{','.join(mark)},...}}", str
    if names := choices(plain):
        return f"{{{','.join(names)}}}", str
    if plain == Speculate:
        return "off|INT", drafts
    return plain.__name__.upper(), _path if plain is Path else plain


def _text(word: str) -> str:
    if not word:
        raise ArgumentTypeError("must not be empty")
    return word


def _path(word: str) -> Path:
    return Path(os.path.expanduser(_text(word)))  # as a shell, it leaves an unknown user's ~ alone


def _file_to_write(word: str) -> Path:
    if word.endswith(os.sep):  # Path drops it, and would name a file as the folder that was meant
        raise ArgumentTypeError(f"{word} names a folder, not a file to write")
    return _path(word)


def _config(word: str) -> Path:
    try:
        return find_config(_path(word))
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def drafts(word: str) -> str | int:
    """A number of drafts, or the word for none."""
    return word if word == "off" else int(word)
