"""Named steps that run once: an interrupted quickstart goes on after the last finished one."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)


class Steps:
    """Remembers finished steps in steps.json under `folder`, for one set of settings.

    Raises ValueError when the folder belongs to other settings.
    """

    def __init__(self, folder: Path, settings: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "steps.json"
        self._settings = hashlib.sha256(settings.encode()).hexdigest()
        self._count = 0
        self.seconds: dict[str, float] = {}
        if self._path.exists():
            record = json.loads(self._path.read_text())
            if record["settings"] != self._settings:
                raise ValueError(
                    f"{folder} holds a run with other settings: "
                    "remove it or name another folder with --output"
                )
            self.seconds = record["seconds"]

    def run(self, name: str, work: Callable[[], None]) -> None:
        """Do `work` unless it was finished before; it must be safe to start again."""
        self._count += 1
        if name in self.seconds:
            logger.info("[%d] %s: done before, skipped", self._count, name)
            return
        logger.info("[%d] %s", self._count, name)
        start = time.perf_counter()
        work()
        self.seconds[name] = round(time.perf_counter() - start, 2)
        partial = self._path.with_suffix(".partial")
        partial.write_text(json.dumps({"settings": self._settings, "seconds": self.seconds}))
        partial.replace(self._path)
