"""The words of a command line as a command's options, which are the fields of a dataclass.

An option of several values takes all that it gets, in `--against A B` as in `--against A --against
B`; one of one value is refused where it comes twice. A `~` in front of a path is the user's home
folder, and no path is empty.
"""

import argparse
import ast
import inspect
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, get_args, get_origin, get_type_hints

from anchored.configs.config_file import CONFIGS, package_configs
from anchored.decode.settings import FLAT
from anchored.wrong_words import Refused

from .option_types import POSITIONAL, Configs, choices, is_several, parts, value_of

Options = TypeVar("Options")
WIDEST = 100
"""Characters of a line on a wide terminal."""


def parse(kind: type[Options], name: str, words: Iterable[str]) -> Options:
    """The options of the command `name`.

    Raises Refused, in one line, for bad words, and exits with 0 where they ask for help or, by
    --list, for the package's configs.
    """
    options = list(options_of(kind))
    several = {option.flag for option in options if is_several(option.plain, option.marks)}
    split: list[str] = []
    for word in words:
        flag, equals, value = word.partition("=")
        flag = flag.replace("_", "-") if flag.startswith("--") else flag
        split += [flag, value] if equals and flag in several else [flag + equals + value]
    values = vars(_parser(kind, name, options).parse_args(split))
    try:
        made: Options = _made(kind, values)
    except ValueError as error:
        first, _, rest = str(error).partition(" ")
        flag = f"--{first.replace('_', '-')}"  # in place of the name in the library
        is_option = rest.startswith("must ") and any(flag == option.flag for option in options)
        raise Refused(f"{flag} {rest}" if is_option else str(error)) from None
    return made


class Option(NamedTuple):
    """A field of a command's options, or of options in them."""

    path: str
    """Names of the fields that lead to it, as rule.k."""
    flag: str
    plain: Any
    """Its type, without None."""
    marks: list[Any]
    default: Any
    """MISSING for one that is needed."""
    about: str


def options_of(kind: Any, path: str = "", prefix: str = "--", made: Any = None) -> Iterator[Option]:
    """All options of a dataclass; `made` has the defaults in place of the class."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        (plain, marks), default = parts(hints[field.name]), field.default
        if made is not None:
            default = getattr(made, field.name)
        elif field.default_factory is not MISSING:
            default = field.default_factory()
        flag = prefix + field.name.replace("_", "-")
        if is_dataclass(plain):
            inner = prefix if FLAT in marks else f"{flag}."
            yield from options_of(plain, f"{path}{field.name}.", inner, default)
        else:
            about = described(kind, field.name) or ""
            yield Option(path + field.name, flag, plain, marks, default, about)


def _made(kind: Any, values: dict[str, Any], make: Any = None) -> Any:
    """The options that have these values, by their paths; the others have their defaults."""
    some = {}
    for field in fields(kind):
        inner = {
            path.removeprefix(f"{field.name}."): value
            for path, value in values.items()
            if path.startswith(f"{field.name}.")
        }
        if inner:
            plain, _ = parts(get_type_hints(kind, include_extras=True)[field.name])
            some[field.name] = _made(plain, inner, field.default_factory)
        elif field.name in values:
            value = values[field.name]
            some[field.name] = tuple(value) if isinstance(value, list) else value
    return (make or kind)(**some)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message.removeprefix('argument ')}; {self.prog} --help says more")


class _Once(argparse.Action):
    """Stores a value; another one is refused."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            raise argparse.ArgumentError(self, "given twice, and takes one value")
        setattr(namespace, self.dest, values)


class _Switch(argparse.BooleanOptionalAction):
    """Stores True or, of --no-FLAG, False; another one is refused."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        is_on = not str(flag).startswith("--no-")
        _Once.__call__(self, parser, namespace, is_on)  # type: ignore[arg-type]


class _List(argparse.Action):
    """Prints the names of the package's configs, and what their first lines say of them."""

    def __call__(self, parser: Any, namespace: Any, values: Any, flag: str | None = None) -> None:
        names = package_configs(self.const.folder, self.const.keys)
        width = max(map(len, names))
        for name, about in names.items():
            print(f"{name:<{width}}  {about}".rstrip())
        sys.exit(0)


def _parser(kind: type, name: str, options: list[Option]) -> _Parser:
    shown = [option.path.upper() for option in options if POSITIONAL in option.marks]
    paragraphs = (inspect.getdoc(kind) or "").split("\n\n")
    width = min(WIDEST, shutil.get_terminal_size().columns)
    parser = _Parser(
        prog=f"anchored {name}",
        usage=" ".join(["anchored", name, *shown, "[OPTIONS]"]),
        description="\n\n".join(textwrap.fill(text, width) for text in paragraphs),
        formatter_class=lambda prog: _Help(prog, max_help_position=6, width=width),
        argument_default=argparse.SUPPRESS,  # so that the dataclass's defaults hold
        allow_abbrev=False,
    )
    for option in options:
        _add(parser, option)
    return parser


class _Help(argparse.RawDescriptionHelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _add(parser: _Parser, option: Option) -> None:
    """Add an option to those of a parser."""
    metavar, value = value_of(option.plain, option.marks)
    about = f"{option.about} ({_shown(option.default)})".replace("%", "%%")
    settings: dict[str, Any] = {"dest": option.path, "help": about}
    if option.plain is bool:
        parser.add_argument(option.flag, action=_Switch, **settings)
        return
    settings |= {"type": value, "metavar": metavar, "action": _Once}
    if get_origin(option.plain) is tuple:
        settings["action"] = "append"
        if is_several(option.plain, option.marks):
            settings |= {"action": "extend", "nargs": "+" if option.default is MISSING else "*"}
    if names := choices(option.plain):
        settings["choices"] = names
    if POSITIONAL in option.marks:
        parser.add_argument(**settings | {"metavar": option.path.upper()})
    else:
        parser.add_argument(option.flag, required=option.default is MISSING, **settings)
    inner = [mark for part in get_args(option.plain) for mark in parts(part)[1]]
    configs = [mark for mark in (*option.marks, *inner) if isinstance(mark, Configs)]
    if configs:
        parser.add_argument(
            "--list", action=_List, nargs=0, const=configs[0], help="Print the package's configs."
        )


def _shown(default: Any) -> str:
    if default is MISSING:
        return "needed"
    return "optional" if default in (None, "", ()) else f"default: {_default_words(default)}"


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
