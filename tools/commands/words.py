"""The words of a command line as a command's options: what holds for the options of all commands.

An option of several values takes all that it is given, in `--against A B` as in
`--against A --against B`; tyro alone would keep the last occurrence. An option of one value is
refused when it is given twice. A `~` in front of a path is the user's home folder, and no path is
empty. An option's help is the docstring of its field.
"""

import ast
import difflib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, fields, is_dataclass
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

from anchored.configs.config_file import CONFIGS, find_config, package_configs
from anchored.decode.settings import FLAT, REPEATED, Speculate

Options = TypeVar("Options")
Values = Literal["one", "several", "one an occurrence"]
"""How many values an option takes; the last is tyro's UseAppendAction."""
_BARE, _POSITIONAL, _APPENDED = (
    get_args(marked[int])[1] for marked in (OmitArgPrefixes, Positional, UseAppendAction)
)
_USAGE_STATUS = 2
_LIST_FLAG = "--list"
_HELP_FLAGS = ("--help", "--help-verbose", "--tyro-print-completion", "--tyro-write-completion")
MEANT = {
    **dict.fromkeys(("--max-tokens", "--max-length", "--max-gen-toks"), "--max-new-tokens"),
    **dict.fromkeys(("--n", "--num-samples", "--num-return"), "--num-return-sequences"),
    **dict.fromkeys(("--stop-strings", "--stop-sequences", "--stop-words"), "--stop"),
    **dict.fromkeys(("--do-sample", "--greedy", "--temp"), "--temperature"),
    **dict.fromkeys(("--input", "--prompts", "--file", "--data"), "--prompt-file"),
    **dict.fromkeys(("--out", "--output-file", "--out-dir", "--output-dir"), "--output"),
    **dict.fromkeys(("--model", "--base", "--risky-model"), "--risky"),
    **dict.fromkeys(("--anchor", "--safe-model"), "--safe"),
    **dict.fromkeys(("--batch", "--bs"), "--batch-size"),
    **dict.fromkeys(("--force", "--yes"), "--overwrite"),
    "--frequency-penalty": "--repetition-penalty",
    "--budget-nats": "--K",
    "--bytes": "--level",
}
"""Options of other programs, and what a command calls them, where it has that option."""


@dataclass(frozen=True, slots=True)
class Configs:
    """Marks an option that takes the package's configs of a folder which have these keys."""

    folder: str
    keys: tuple[str, ...] = ()


class Refused(Exception):
    """Words that can be no options, in one line; tyro, which would frame a ValueError and name the
    class that is made, leaves it alone."""


def parse(kind: type[Options], name: str, words: Iterable[str]) -> Options:
    """The options of the command `name`.

    Exits with status 2 and a message for bad words, and with 0 where they ask for help or, by
    --list, for the package's configs.
    """
    words = list(words)
    folders = [mark for mark in _config_marks(kind) if _LIST_FLAG in words]
    if folders:
        print(_listed(folders[0]))
        sys.exit(0)
    options = option_values(kind)
    return _cli(kind, name, [_known_option(name, word, options) for word in words])


def parse_known(kind: type[Options], name: str, words: Iterable[str]) -> tuple[Options, list[str]]:
    """The options as `parse` gives them, and the words that are no options of this command."""
    return _cli(kind, name, words, return_unknown_args=True)


def _cli(kind: type, name: str, words: Iterable[str], **settings: Any) -> Any:
    try:
        arguments = gather(option_values(kind), words)
        with _RULES:  # None stands for an option that is not given: nobody can give it
            settings |= {"prog": f"anchored {name}", "description": inspect.getdoc(kind)}
            return tyro.cli(kind, args=arguments, config=(DisallowNone,), **settings)
    except Refused as error:
        print(f"anchored {name}: {error}", file=sys.stderr)
        sys.exit(_USAGE_STATUS)


def _known_option(name: str, word: str, options: dict[str, Values]) -> str:
    """The word; exits with status 2, and what may be meant, for an option that does not exist."""
    flag, equals, value = word.partition("=")
    if not re.fullmatch(r"--[A-Za-z][\w.-]*", flag):
        return word
    dashed = flag.replace("_", "-")
    known = {*options, *(option.replace("--", "--no-", 1) for option in options), *_HELP_FLAGS}
    if dashed in known:
        return dashed + equals + value
    meant = [MEANT[dashed]] if MEANT.get(dashed) in options else []
    meant = meant or difflib.get_close_matches(dashed, options, n=3)
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    print(
        f"anchored {name}: there is no option {flag}; {hint}anchored {name} --help lists all",
        file=sys.stderr,
    )
    sys.exit(_USAGE_STATUS)


def _config_marks(kind: type) -> list[Configs]:
    """Which of the package's configs the options of a dataclass take."""
    hints = get_type_hints(kind, include_extras=True).values()
    return [mark for hint in hints for mark in _marks_in(hint)]


def _marks_in(hint: Any) -> list[Configs]:
    marks = [mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Configs)]
    return marks + [mark for part in get_args(hint) for mark in _marks_in(part)]


def _listed(configs: Configs) -> str:
    """Names of configs and what their first lines say of them."""
    names = package_configs(configs.folder, configs.keys)
    width = max(map(len, names))
    return "\n".join(f"{name:<{width}}  {about}".rstrip() for name, about in names.items())


def _marked_hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, with tyro's marks for those of the library's options."""
    return {n: _marked(hint) for n, hint in get_type_hints(kind, include_extras=True).items()}


def _marked(hint: Any) -> Any:
    plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if marks and isinstance(marks[0], tuple):  # known names, as {a,b,...}
        return Annotated[plain, tyro.conf.arg(metavar=f"{{{','.join(marks[0])},...}}")]
    if marks and isinstance(marks[0], str):
        return Annotated[plain, {FLAT: _BARE, REPEATED: _APPENDED}[marks[0]]]
    return hint


def option_values(kind: type, prefix: str = "--") -> dict[str, Values]:
    """The options of a dataclass by name, as `--top-k`, and how many values each takes."""
    options: dict[str, Values] = {}
    for name, hint in _marked_hints(kind).items():
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

    Raises Refused for an option of one value that is given twice.
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
            raise Refused(f"{flag} is given twice, and takes one value")
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


def _config(word: str) -> Path:
    try:
        return find_config(_expanded(word))
    except ValueError as error:
        raise Refused(str(error)) from None  # tyro tells no reason for one of several values


_CONFIG = _path_spec(
    "FILE|NAME",
    _config,
    lambda path: path.relative_to(CONFIGS) if path.is_relative_to(CONFIGS) else path,
)
SweepFile = Annotated[Path, _CONFIG, Configs("eval", ("methods", "safe"))]
"""A config file, or the name of one of the package's own: quickstart-methods."""
ComparisonFile = Annotated[Path, _CONFIG, Configs("eval", ("benchmarks",))]
TrainingFile = Annotated[Path, _CONFIG, Configs("pretrain")]
OutputFile = Annotated[Path, _path_spec("FILE", _file_to_write)]
_PATH = _path_spec("PATH", _expanded)
_RULES = ConstructorRegistry()
_RULES.primitive_rule(lambda info: _PATH if info.type is Path else None)


def _number_spec(kind: type[int] | type[float]) -> PrimitiveConstructorSpec[Any]:
    def instance(words: list[str]) -> int | float:
        try:
            return kind(words[0])
        except ValueError:
            whole = "whole " if kind is int else ""
            raise ValueError(f"it must be a {whole}number, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=instance,
        is_instance=lambda value: value is None or isinstance(value, kind | int),
        str_from_instance=lambda value: [str(value)],
    )


def _drafts(words: list[str]) -> str | int:
    if words[0] in get_args(get_args(Speculate)[0]):
        return words[0]
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"it must be auto, off or a whole number, got {words[0]!r}") from None


_DRAFTS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="{auto,off}|INT",
    instance_from_str=_drafts,
    is_instance=lambda value: isinstance(value, str | int),
    str_from_instance=lambda value: [str(value)],
)
_NUMBERS = [(hint, _number_spec(kind)) for kind in (int, float) for hint in (kind, kind | None)]
_SPECS: list[tuple[Any, PrimitiveConstructorSpec[Any]]] = [*_NUMBERS, (Speculate, _DRAFTS)]
_RULES.primitive_rule(lambda info: next((spec for hint, spec in _SPECS if info.type == hint), None))


@_RULES.struct_rule
def _options(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The options of a dataclass.

    tyro's own rule would break the docstrings of fields where their lines end, and show as a
    default what stands for none.
    """
    if not is_dataclass(info.type):
        return None
    hints, options = _marked_hints(info.type), []
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
    return StructConstructorSpec(partial(_made, info.type), tuple(options))


def _made(kind: type, /, **values: Any) -> Any:
    try:
        return kind(**values)
    except ValueError as error:
        raise Refused(str(error)) from None


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
