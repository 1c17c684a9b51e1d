"""The help of a command, from its options: a class's docstring and those of its fields."""

import ast
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from anchored.configs.config_file import CONFIGS

from .option_types import APPENDED, BARE, POSITIONAL, SPECS, marked_hints, parts

_WIDEST = 100
"""Characters of a line on a wide terminal."""


def help_text(kind: type, name: str) -> str:
    """The help of a command: its docstring and every option, as wide as the terminal."""
    width, hints = min(_WIDEST, shutil.get_terminal_size().columns), marked_hints(kind)
    paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
    wrapped = partial(textwrap.fill, width=width, break_on_hyphens=False)
    blocks = [wrapped(" ".join(each.split())) for each in paragraphs]
    options = [("-h, --help", "Print this."), *_option_lines(kind)]
    lines = [
        wrapped(text, initial_indent=" " * indent, subsequent_indent=" " * indent)
        for option in options
        for text, indent in zip(option, (2, 6), strict=True)
    ]
    positional = [field for field in fields(kind) if POSITIONAL in parts(hints[field.name])[1]]
    usage = " ".join(["usage: anchored", name, *(each.name.upper() for each in positional)])
    return "\n\n".join([wrapped(f"{usage} [OPTIONS]"), *blocks, "\n".join(lines)])


def _option_lines(kind: type, prefix: str = "--", made: Any = None) -> Iterator[tuple[str, str]]:
    """Each option with its values, and what it says with its default."""
    for field in fields(kind):
        plain, marks = parts(marked_hints(kind)[field.name])
        flag, default = prefix + field.name.replace("_", "-"), _default(field, made)
        if is_dataclass(plain) and isinstance(plain, type):
            yield from _option_lines(plain, prefix if BARE in marks else f"{flag}.", default)
            continue
        is_word = POSITIONAL in marks
        head = field.name.upper() if is_word else f"{flag} {_metavar(plain, marks)}".rstrip()
        if plain is bool:
            head = f"{flag}, {flag.replace('--', '--no-', 1)}"
        if default is MISSING:
            shown = "needed"
        elif default in (None, "", ()):
            shown = "optional"
        else:
            shown = f"default: {_default_words(default)}"
        yield head, f"{described(kind, field.name)} ({shown})"


def _default(field: Any, made: Any) -> Any:
    """A field's default, or what it is in a dataclass that was made; MISSING for none."""
    if made is not None and made is not MISSING:
        return getattr(made, field.name)
    return field.default if field.default_factory is MISSING else field.default_factory()


def _metavar(plain: Any, marks: list[Any]) -> str:
    """The values of an option: INT, {kl,max}, PATH ... for several."""
    for mark in marks:
        if metavar := getattr(mark, "metavar", None):
            return str(metavar)
    if get_origin(plain) is Literal:
        return f"{{{','.join(map(str, get_args(plain)))}}}"
    if get_origin(plain) is tuple:
        inner = _metavar(*parts(get_args(plain)[0]))
        return inner if APPENDED in marks else f"{inner} ..."
    known = (spec.metavar for hint, spec in SPECS if hint == plain)
    return next(known, plain.__name__.upper())


def _default_words(default: Any) -> str:
    if isinstance(default, Path) and default.is_relative_to(CONFIGS):
        return str(default.relative_to(CONFIGS))
    return " ".join(map(_default_words, default)) if isinstance(default, tuple) else str(default)


def described(kind: type, name: str) -> str | None:
    """The docstring of a field, in one line, from the class that defines it."""
    texts = (_docstrings(base.__module__).get((base.__name__, name)) for base in kind.__mro__)
    return next(filter(None, texts), None)


@cache
def _docstrings(module: str) -> dict[tuple[str, str], str]:
    """The docstrings of the fields of a module's classes, by class and field."""
    if module == "builtins":
        return {}
    return {
        (kind.name, ast.unparse(field.target)): " ".join(ast.literal_eval(text.value).split())
        for kind in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(kind, ast.ClassDef)
        for field, text in pairwise(kind.body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
