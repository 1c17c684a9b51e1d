"""The types of options: how words become their values, and what stands for them in a help text."""

import os
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro
from tyro.conf import OmitArgPrefixes, Positional, UseAppendAction
from tyro.constructors import (
    ConstructorRegistry,
    PrimitiveConstructorSpec,
    PrimitiveTypeInfo,
    StructConstructorSpec,
    StructFieldSpec,
    StructTypeInfo,
)

from anchored.configs.config_file import CONFIGS, find_config
from anchored.decode.settings import FLAT, MODEL, REPEATED, Speculate
from anchored.wrong_words import Refused

BARE, POSITIONAL, APPENDED = (
    get_args(marked[int])[1] for marked in (OmitArgPrefixes, Positional, UseAppendAction)
)


@dataclass(frozen=True, slots=True)
class Configs:
    """Marks an option that takes the package's configs of a folder which have these keys."""

    folder: str
    keys: tuple[str, ...] = ()


def _path_spec(
    metavar: str, path_of: Callable[[str], Path], shown: Callable[[Path], Path] = Path
) -> PrimitiveConstructorSpec[Any]:
    def instance(words: list[str]) -> Path:
        if not words[0]:
            raise ValueError("must not be empty")
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


_CONFIG = _path_spec(
    "FILE|NAME",
    lambda word: find_config(_expanded(word)),
    lambda path: path.relative_to(CONFIGS) if path.is_relative_to(CONFIGS) else path,
)
SweepFile = Annotated[Path, _CONFIG, Configs("eval", ("methods", "safe"))]
"""A config file, or the name of one of the package's own: quickstart-methods."""
ComparisonFile = Annotated[Path, _CONFIG, Configs("eval", ("benchmarks",))]
TrainingFile = Annotated[Path, _CONFIG, Configs("pretrain")]
OutputFile = Annotated[Path, _path_spec("FILE", _file_to_write)]
_PATH = _path_spec("PATH", _expanded)


def _model(words: list[str]) -> str:
    if not words[0]:
        raise ValueError("must not be empty")
    return words[0]


_MODEL: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="FOLDER|ID",
    instance_from_str=_model,
    is_instance=lambda value: isinstance(value, str | Path | None),
    str_from_instance=lambda value: [str(value)],
)
RULES = ConstructorRegistry()


def _number_spec(kind: type[int] | type[float]) -> PrimitiveConstructorSpec[Any]:
    def instance(words: list[str]) -> int | float:
        try:
            return kind(words[0])
        except ValueError:
            whole = "whole " if kind is int else ""
            raise ValueError(f"must be a {whole}number, got {words[0]!r}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=kind.__name__.upper(),
        instance_from_str=instance,
        is_instance=lambda value: isinstance(value, kind | int),
        str_from_instance=lambda value: [str(value)],
    )


def _drafts(words: list[str]) -> str | int:
    if words[0] in get_args(get_args(Speculate)[0]):
        return words[0]
    try:
        return int(words[0])
    except ValueError:
        raise ValueError(f"must be auto, off or a whole number, got {words[0]!r}") from None


_DRAFTS: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
    nargs=1,
    metavar="{auto,off}|INT",
    instance_from_str=_drafts,
    is_instance=lambda value: isinstance(value, str | int),
    str_from_instance=lambda value: [str(value)],
)
SPECS: list[tuple[Any, PrimitiveConstructorSpec[Any]]] = [
    *((Path, _PATH), (Speculate, _DRAFTS)),
    *((kind, _number_spec(kind)) for kind in (int, float)),
]
RULES.primitive_rule(lambda info: next((spec for hint, spec in SPECS if info.type == hint), None))


@RULES.primitive_rule
def _optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """A value that stands for itself where it is given, and for None where it is not: no word does.

    tyro's rule would not say what is wrong with it.
    """
    inner = [each for each in get_args(info.type) if each is not NoneType]
    if NoneType not in get_args(info.type) or len(inner) != 1:
        return None
    one = _spec(inner[0], info)
    return replace(one, is_instance=lambda value: value is None or one.is_instance(value))


@RULES.primitive_rule
def _several(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    """Several values; tyro's rule would not say what is wrong with one of them."""
    if get_origin(info.type) is not tuple or APPENDED in info.markers:
        return None
    one = _spec(get_args(info.type)[0], info)
    return replace(
        one,
        nargs="*",
        instance_from_str=lambda words: tuple(one.instance_from_str([word]) for word in words),
        is_instance=lambda value: isinstance(value, tuple),
        str_from_instance=lambda value: [w for each in value for w in one.str_from_instance(each)],
    )


def _spec(inner: Any, info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any]:
    made = PrimitiveTypeInfo.make(inner, parent_markers=info.markers)
    spec = ConstructorRegistry.get_primitive_spec(made)
    assert isinstance(spec, PrimitiveConstructorSpec), f"no option can be {inner}"
    return spec


@RULES.struct_rule
def _options(info: StructTypeInfo) -> StructConstructorSpec | None:
    """The options of a dataclass.

    tyro's rule would name the class that is made in what it says of a wrong value.
    """
    if not is_dataclass(info.type):
        return None
    hints, options = marked_hints(info.type), []
    for field in fields(info.type):
        default = tyro.MISSING if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if is_dataclass(info.default):
            default = getattr(info.default, field.name)
        options.append(StructFieldSpec(field.name, hints[field.name], default, ""))
    return StructConstructorSpec(partial(_made, info.type), tuple(options))


def _made(kind: type, /, **values: Any) -> Any:
    try:
        return kind(**values)
    except ValueError as error:
        raise Refused(str(error)) from None


def marked_hints(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, with tyro's marks for those of the library's options."""
    return {n: _marked(hint) for n, hint in get_type_hints(kind, include_extras=True).items()}


def _marked(hint: Any) -> Any:
    plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if marks and isinstance(marks[0], tuple):  # known names, as {a,b,...}
        return Annotated[plain, tyro.conf.arg(metavar=f"{{{','.join(marks[0])},...}}")]
    if marks and isinstance(marks[0], str):
        return Annotated[plain, {FLAT: BARE, REPEATED: APPENDED, MODEL: _MODEL}[marks[0]]]
    return hint


def parts(hint: Any) -> tuple[Any, list[Any]]:
    """The plain type of a hint, without None, and its marks."""
    plain, *marks = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    inner = [each for each in get_args(plain) if each is not NoneType]
    if len(inner) == 1 and NoneType in get_args(plain):
        plain, more = parts(inner[0])
        marks += more
    return plain, marks
