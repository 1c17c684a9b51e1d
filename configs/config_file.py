"""Config files: TOML, in which a file may build on another, read into dataclasses and written."""

import difflib
import json
import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from ..fields import from_record

Tables = dict[str, Any]
BASE_KEY = "base"
CONFIGS = Path(__file__).parent
"""The package's configs, which an installation has too."""


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
    hint = f"; the package has {', '.join(close)}" if close else "; --list names the package's"
    raise FileNotFoundError(f"there is no file {name}{hint}")


def package_configs(folder: str, keys: Collection[str] = ()) -> dict[str, str]:
    """Descriptions of the package's configs in a folder, by the shortest name that finds each.

    keys: those that its tables must hold, bases included.
    """
    files = sorted((CONFIGS / folder).rglob("*.toml"))
    stems = Counter(file.stem for file in CONFIGS.rglob("*.toml"))
    titles = {}
    for file in files:
        if set(keys) <= read_config_file(file).keys():
            whole = file.relative_to(CONFIGS).with_suffix("").as_posix()
            first, _ = file.read_text(encoding="utf-8").split("\n", 1)
            title = re.split(r"[.:](?: |$)", first.lstrip("# "))[0]
            titles[file.stem if stems[file.stem] == 1 else whole] = title
    return titles


def find_path(name: str | Path, folders: Iterable[Path]) -> Path | None:
    """The first path of this name that exists in these folders, or None; `~` is expanded."""
    path = Path(name).expanduser()
    return next((folder / path for folder in folders if (folder / path).exists()), None)


def located(key: str, name: str | Path, folders: Iterable[Path]) -> Path:
    """The file or folder that a key of a config names, as `find_path` finds it.

    Raises FileNotFoundError that names the key, and every absolute path where it would be found.
    """
    folders = list(folders)
    if path := find_path(name, folders):
        return path
    wanted = Path(name).expanduser()
    places = dict.fromkeys(os.path.abspath(folder / wanted) for folder in folders)
    raise FileNotFoundError(f"{key}: there is no file or folder {', nor '.join(places)}")


def read_with_folders(path: Path) -> tuple[Tables, tuple[Path, ...]]:
    """`read_config_file`, and the folders that relative paths in it are looked for in, in order:
    its own, those of its bases, and the one where the command runs."""
    folders: list[Path] = []

    def noted(tables: Tables, folder: Path) -> Tables:
        folders.append(folder)
        return tables

    tables = read_config_file(path, expanded=noted)
    return tables, tuple(dict.fromkeys([*folders, Path()]))


def read_config_file(
    path: Path, *, expanded: Callable[[Tables, Path], Tables] = lambda tables, folder: tables
) -> Tables:
    """The tables of a config, over those of the file that its first line `base = "FILE"` names.

    FILE is looked for next to the config, then where the command runs. Tables are merged key by
    key, anything else, arrays included, replaces what the base says.
    expanded: what the tables of one file stand for, given its folder; before they are merged.
    Raises: FileNotFoundError, or ValueError for invalid TOML and for bases that go in a circle.
    """
    return _read(path, expanded, ())


def _read(
    path: Path, expanded: Callable[[Tables, Path], Tables], readers: tuple[Path, ...]
) -> Tables:
    if path.resolve() in readers:
        raise ValueError(f"config file {path} is a base of itself")
    table = expanded(read_toml(path), path.parent)
    if BASE_KEY not in table:
        return table
    base = table.pop(BASE_KEY)
    if not isinstance(base, str):
        raise ValueError(f"{BASE_KEY} of config file {path} must be the name of a file, got {base}")
    file = located(BASE_KEY, base, (path.parent, Path()))
    return _merged(_read(file, expanded, (*readers, path.resolve())), table)


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
        # TOML is UTF-8 whatever the locale says; some editors put a byte order mark in front.
        return tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error


def check_holds(path: Path, tables: Tables, key: str, kind: str) -> None:
    """Raise ValueError, in one line, for the config of another kind, which lacks this key."""
    if key not in tables:
        raise ValueError(f"{path} is not the config of {kind}: it has no {key}")


def from_table(kind: type[Any], table: Tables, prefix: str = "") -> Any:
    """An instance of a dataclass with the values of a table of TOML, as `from_record`.

    Tables in it are dataclasses, arrays of tables tuples of these. Raises ValueError that names the
    key, dotted.
    """
    return from_record(kind, table, f"config key {prefix}")


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
