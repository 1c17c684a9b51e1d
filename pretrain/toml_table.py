"""Tables of a TOML file as dataclasses, with unknown keys and wrong types refused by name."""

import difflib
import tomllib
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file. Raises FileNotFoundError, or ValueError with the file's name."""
    if not path.is_file():
        raise FileNotFoundError(f"config file {path} does not exist")
    try:
        return tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def from_table(cls: type, table: dict[str, Any], prefix: str = "") -> Any:
    """An instance of the dataclass `cls` with the table's values over its defaults.

    Nested dataclasses are tables, tuples of dataclasses are arrays of tables.
    Raises: ValueError naming the key, dotted, for an unknown key or a value of the wrong type.
    """
    types = {field.name: field.type for field in fields(cls)}
    values = {}
    for key, value in table.items():
        if key not in types:
            raise ValueError(f"unknown config key {prefix}{key}{_suggestion(key, list(types))}")
        values[key] = _convert(types[key], value, prefix + key)
    try:
        return cls(**values)
    except TypeError as error:  # a required key is missing
        raise ValueError(f"config table {prefix.rstrip('.')}: {error}") from error


def _convert(kind: Any, value: Any, name: str) -> Any:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if is_dataclass(kind):
        _require(isinstance(value, dict), name, "a table", value)
        return from_table(kind, value, f"{name}.")
    if get_origin(kind) is tuple:
        _require(isinstance(value, list), name, "an array of tables", value)
        item = get_args(kind)[0]
        return tuple(_convert(item, entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if get_origin(kind) is dict:
        _require(isinstance(value, dict), name, "a table", value)
        item = get_args(kind)[1]
        return {key: _convert(item, entry, f"{name}.{key}") for key, entry in value.items()}
    _require(_fits(kind, value), name, _describe(kind), value)
    return value


def _fits(kind: Any, value: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(member, value) for member in get_args(kind))
    if get_origin(kind) is list:
        return isinstance(value, list)
    if kind in (int, float):  # bool is an int to Python, not to a reader
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return isinstance(value, kind)


def _describe(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    return getattr(kind, "__name__", str(kind))


def _require(condition: bool, name: str, rule: str, value: Any) -> None:
    if not condition:
        raise ValueError(f"config key {name} must be {rule}, got {value!r}")


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
