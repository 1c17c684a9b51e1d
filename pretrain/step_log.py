"""A file of JSON lines, one a step, that stays one curve through interruptions."""

import json
from pathlib import Path
from typing import Any


class StepLog:
    """Lines with a "step" in ascending order; each step once, however often a run was resumed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def keep_until(self, step: int) -> None:
        """Drop what is said of later steps: they are about to be trained again."""
        if not self.path.exists():
            return
        lines = _complete_lines(self.path.read_text())
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        partial = self.path.with_suffix(".partial")
        partial.write_text("".join(kept))
        partial.replace(self.path)

    def append(self, line: dict[str, Any]) -> None:
        """Write one line, which holds a "step"."""
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _complete_lines(text: str) -> list[str]:
    # A process killed while writing leaves a last line without its end.
    return [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
