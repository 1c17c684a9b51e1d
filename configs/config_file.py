"""Config files: TOML, in which a file may build on another, read into dataclasses and written."""

import difflib
import json
import tomllib
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from ..field_types import is_of_type, type_name

Tables = dict[str, Any]
BASE_KEY = "base"
CONFIGS = Path(__file__).parent
"""The package's own configs, which an installation has too."""


def find_config(name: Path) -> Path:
    """The config file of this name: a path, or the end of a path in the package's `configs`.

    The suffix may be left out: quickstart-methods is configs/eval/quickstart-methods.toml. Raises
    FileNotFoundError where there is none, ValueError where there are several.
    """
    if name.exists() or name.is_absolute():
        return name
    known = {file.relative_to(CONFIGS.parent): file for file in sorted(CONFIGS.rglob("*.toml"))}
    ends = {path: (path.parts, path.with_suffix("").parts) for path in known}
    length = len(name.parts)
    named = [p for p, whole in ends.items() if name.parts in (w[-length:] for w in whole)]
    if len(named) > 1:
        raise ValueError(f"{name} may be any of {', '.join(map(str, named))}")
    if named:
        return known[named[0]]
    close = difflib.get_close_matches(name.stem, [path.stem for path in known], n=3)
    hint = f"; the package has {', '.join(close)}" if close else ""
    raise FileNotFoundError(f"there is no file {name}{hint}")


def read_config_file(
    path: Path, *, expanded: Callable[[Tables, Path], Tables] = lambda tables, folder: tables
) -> Tables:
    """The tables of a config, over those of the file that its first line `base = "FILE"` names.

    FILE is relative to the folder of the config. Tables are merged key by key, anything else,
    arrays included, replaces what the base says.
    expanded: what the tables of one file stand for, given its folder; before they are merged.
    Raises: FileNotFoundError, or ValueError for invalid TOML and for bases that go in a circle.
    """
    return _read(path, expanded, ())


def _read(
    path: Path, expanded: Callable[[Tables, Path], Tables], readers: tuple[Path, ...]
) -> Tables:
    if path.resolve() in readers:
        raise ValueError(f"config file {path} is its own base")
    table = expanded(read_toml(path), path.parent)
    if BASE_KEY not in table:
        return table
    base = table.pop(BASE_KEY)
    if not isinstance(base, str):
        raise ValueError(f"{BASE_KEY} of config file {path} must be the name of a file, got {base}")
    return _merged(_read(path.parent / base, expanded, (*readers, path.resolve())), table)


def _merged(base: Tables, table: Tables) -> Tables:
    merged = dict(base)
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            value = _merged(merged[key], value)
        merged[key] = value
    return merged


def read_toml(path: Path) -> Tables:
    """The tables of a TOML file. Raises FileNotFoundError, or ValueError with the file's name."""
    if not path.is_file():
        raise FileNotFoundError(f"config file {path} does not exist")
    try:
        with path.open("rb") as file:  # TOML is UTF-8 whatever the locale says
            return tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def from_table(cls: type, table: Tables, prefix: str = "") -> Any:
    """An instance of the dataclass `cls` with the table's values over its defaults.

    Nested dataclasses are tables, tuples of dataclasses are arrays of tables.
    Raises: ValueError naming the key, dotted, for an unknown key or a value of the wrong type.
    """
    types = get_type_hints(cls, include_extras=True)
    values = {}
    for key, value in table.items():
        if key not in types:
            close = difflib.get_close_matches(key, types, n=1)
            suggestion = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"unknown config key {prefix}{key}{suggestion}")
        values[key] = _convert(types[key], value, prefix + key)
    needed = [f.name for f in fields(cls) if f.default is f.default_factory is MISSING]
    if missing := [prefix + name for name in needed if name not in values]:
        raise ValueError(f"config key {missing[0]} is missing")
    return cls(**values)


def toml_text(tables: Tables) -> str:
    """TOML of tables that hold plain values, tables and arrays of both."""
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in tables.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key} = {_toml_value(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # JSON has no inf
    # JSON's are TOML's too, but for characters escaped by halves.
    return json.dumps(value, ensure_ascii=False)


def _convert(kind: Any, value: Any, name: str) -> Any:
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) is UnionType and is_dataclass(get_args(kind)[0]):
        kind = get_args(kind)[0]  # a table that may be missing; TOML has no null
    if isinstance(kind, type) and is_dataclass(kind):
        _require(isinstance(value, dict), name, "a table", value)
        return from_table(kind, value, f"{name}.")
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        rule = "an array of tables" if is_dataclass(item) else "an array"
        _require(isinstance(value, list), name, rule, value)
        return tuple(_convert(item, entry, f"{name}[{i}]") for i, entry in enumerate(value))
    if get_origin(kind) is dict:
        _require(isinstance(value, dict), name, "a table", value)
        item = get_args(kind)[1]
        return {key: _convert(item, entry, f"{name}.{key}") for key, entry in value.items()}
    is_path = kind is Path or Path in get_args(kind)
    if is_path and isinstance(value, str | Path):
        return Path(value)
    _require(is_of_type(value, kind), name, type_name(kind), value)
    return value


def _require(condition: bool, name: str, rule: str, value: Any) -> None:
    if not condition:
        raise ValueError(f"config key {name} must be {rule}, got {value!r}")
