"""Run configs as files: TOML, where a file may take everything it does not say from another."""

from pathlib import Path
from typing import Any

from .toml_table import read_toml

BASE_KEY = "base"


def read_config_file(path: Path) -> dict[str, Any]:
    """The tables of a config, over those of the file that its first line `base = "FILE"` names.

    FILE is relative to the folder of the config. Tables are merged key by key, anything else,
    arrays included, replaces what the base says.
    Raises: FileNotFoundError, or ValueError for invalid TOML and for bases that go in a circle.
    """
    return _read(path, ())


def _read(path: Path, readers: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in readers:
        raise ValueError(f"config file {path} is its own base")
    table = read_toml(path)
    if BASE_KEY not in table:
        return table
    base = table.pop(BASE_KEY)
    if not isinstance(base, str):
        raise ValueError(f"{BASE_KEY} of config file {path} must be the name of a file, got {base}")
    return _merged(_read(path.parent / base, (*readers, path.resolve())), table)


def _merged(base: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in table.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            value = _merged(merged[key], value)
        merged[key] = value
    return merged
