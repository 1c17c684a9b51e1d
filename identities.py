"""The settings that decide the results in a folder, and how they differ from a call's.

An identity holds no path, so that a folder may be copied or moved with its models and texts: it
has files by their sha256, models by their fingerprint or Hub id.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_SHOWN = 3
"""Differences that a message names."""
_LONGEST_VALUE = 200
"""Characters of a value in a message."""
_MISSING = object()


def differences(recorded: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Each setting that differs, by its dotted name, with its value before and now."""
    before, now = (_flat(json.loads(json.dumps(settings))) for settings in (recorded, ours))
    names = [
        name for name in {**before, **now} if before.get(name, _MISSING) != now.get(name, _MISSING)
    ]
    return [f"{name} was {_shown(before, name)} and is now {_shown(now, name)}" for name in names]


def check_same(
    recorded: Mapping[str, Any], ours: Mapping[str, Any], where: Path, *, advice: str
) -> None:
    """Raise ValueError, with the settings that differ, unless all are as recorded.

    where: the file or folder that they were recorded for. advice: what a user can do.
    """
    if differing := differences(recorded, ours):
        shown = "; ".join(differing[:_MOST_SHOWN])
        more = len(differing) - _MOST_SHOWN
        shown += f"; and {more} more" if more > 0 else ""
        raise ValueError(f"{where} was made with other settings ({shown}): {advice}")


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """The values in tables and in lists of tables, by their dotted names."""
    if isinstance(value, dict) and (value or not name):
        parts = {f"{name}.{key}" if name else key: part for key, part in value.items()}
    elif isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts = {f"{name}[{index}]": part for index, part in enumerate(value)}
    else:
        return {name: value}
    return {key: plain for path, part in parts.items() for key, plain in _flat(part, path).items()}


def _shown(values: Mapping[str, Any], name: str) -> str:
    if name not in values:
        return "missing"
    text = json.dumps(values[name], ensure_ascii=False)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
