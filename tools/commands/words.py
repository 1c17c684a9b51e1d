"""The words of a command line as a command's options: what holds for the options of all commands.

An option of several values takes all that it is given, in `--against A B` as in
`--against A --against B`; tyro alone would keep the last occurrence. An option of one value is
refused when it is given twice. A `~` in front of a path is the user's home folder, and no path is
empty. An option's help is the docstring of its field.
"""

import ast
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import DisallowNone, OmitArgPrefixes, Positional, UseAppendAction
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from anchored.configs.config_file import CONFIGS, find_config

Options = TypeVar("Options")
Values = Literal["one", "several", "one an occurrence"]
"""How many values an option takes; the last is tyro's UseAppendAction."""
_BARE, _POSITIONAL, _APPENDED = (
    get_args(marked[int])[1] for marked in (OmitArgPrefixes, Positional, UseAppendAction)
)
_USAGE_STATUS = 2


def parse(kind: type[Options], name: str, words: Iterable[str]) -> Options:
    """The options of the command `name`; exits with status 2 and a message for bad words."""
    return _cli(kind, name, words)


def parse_known(kind: type[Options], name: str, words: Iterable[str]) -> tuple[Options, list[str]]:
    """The options as `parse` gives them, and the words that are no options of this command."""
    return _cli(kind, name, words, return_unknown_args=True)


def _cli(kind: type, name: str, words: Iterable[str], **settings: Any) -> Any:
    try:
        given = gather(option_values(kind), words)
    except ValueError as error:
        print(f"anchored {name}: {error}", file=sys.stderr)
        sys.exit(_USAGE_STATUS)
    with _RULES:  # None stands for an option that is not given: nobody can give it
        config = (DisallowNone,)
        return tyro.cli(kind, prog=f"anchored {name}", args=given, config=config, **settings)


def option_values(kind: type, prefix: str = "--") -> dict[str, Values]:
    """The options of a dataclass by name, as `--top-k`, and how many values each takes."""
    options: dict[str, Values] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        flag = prefix + name.replace("_", "-")
        if is_dataclass(plain) and isinstance(plain, type):
            options |= option_values(plain, prefix if _BARE in marks else f"{flag}.")
        elif _APPENDED in marks:
            options[flag] = "one an occurrence"
        elif _POSITIONAL not in marks:
            options[flag] = "several" if get_origin(plain) is tuple else "one"
    return options


def gather(options: dict[str, Values], words: Iterable[str]) -> list[str]:
    """The words, with all values of an option of several values after its first occurrence.

    Raises ValueError for an option of one value that is given twice.
    """
    groups: list[list[str]] = [[]]  # an option and the words after it
    current = groups[0]
    first: dict[str, list[str]] = {}
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-")
        if flag.replace("--no-", "--", 1) in options:
            flag = flag.replace("--no-", "--", 1)
        if flag not in options:
            current.append(word)
        elif flag in first and options[flag] == "several":
            current = first[flag]
            current += [value] if equals else []
        elif flag in first and options[flag] == "one":
            raise ValueError(f"{flag} is given twice, and takes one value")
        else:
            current = [word]
            groups.append(current)
            first[flag] = current
    return [word for group in groups for word in group]


def _path_spec(
    metavar: str, path_of: Callable[[str], Path], shown: Callable[[Path], Path] = Path
) -> PrimitiveConstructorSpec[Any]:
    def instance(words: list[str]) -> Path:
        if not words[0]:
            raise ValueError("a path must not be empty")
        return path_of(words[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=instance,
        is_instance=lambda value: isinstance(value, Path),
        str_from_instance=lambda path: [str(shown(path))],
    )


def _expanded(word: str) -> Path:
    return Path(os.path.expanduser(word))  # as a shell, it leaves the ~ of an unknown user alone


def _file_to_write(word: str) -> Path:
    if word.endswith(os.sep):  # Path drops it, and would name a file as the folder that was meant
        raise ValueError(f"{word} names a folder, not a file to write")
    return _expanded(word)


ConfigFile = Annotated[
    Path,
    _path_spec(
        "FILE|NAME",
        lambda word: find_config(_expanded(word)),
        lambda path: path.relative_to(CONFIGS) if path.is_relative_to(CONFIGS) else path,
    ),
]
"""A config file, or the name of one of the package's own: quickstart-methods."""
OutputFile = Annotated[Path, _path_spec("FILE", _file_to_write)]
_PATH = _path_spec("PATH", _expanded)
_RULES = ConstructorRegistry()
_RULES.primitive_rule(lambda info: _PATH if info.type is Path else None)


@_RULES.struct_rule
def _options(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The options of a dataclass.

    tyro's own rule would break the docstrings of fields where their lines end, and show as a
    default what stands for none.
    """
    if not is_dataclass(info.type):
        return None
    hints, options = get_type_hints(info.type, include_extras=True), []
    for field in fields(info.type):
        default = tyro.MISSING if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if is_dataclass(info.default):
            default = getattr(info.default, field.name)
        hint = hints[field.name]
        if default in (None, "", ()):
            hint = Annotated[hint, tyro.conf.arg(help_behavior_hint="(optional)")]
        text = partial(described, info.type, field.name)
        options.append(StructFieldSpec(field.name, hint, default, text))
    return StructConstructorSpec(info.type, tuple(options))


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
