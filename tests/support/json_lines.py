"""Files of JSON lines."""

import json
from collections.abc import Iterable
from pathlib import Path


def write_json_lines(path: Path, rows: Iterable[object]) -> str:
    """The path of a file with a row a line, whose folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def read_json_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]
