"""Named steps that run once: an interrupted experiment goes on after the last finished one."""

import hashlib
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

from ...durable_files import write_durably

logger = logging.getLogger(__name__)


class Steps:
    """Remembers finished steps in steps.json under `folder`, for one set of settings.

    Raises ValueError when the folder belongs to other settings, or to somebody else: it holds
    something, and no steps.json.
    """

    def __init__(self, folder: Path, settings: str, *, owner: str) -> None:
        """owner: what writes such folders, for errors."""
        self._owner = owner
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / "steps.json"
        self._settings = hashlib.sha256(settings.encode()).hexdigest()
        self._count = 0
        self.seconds: dict[str, float] = {}
        if self._path.exists():
            self.seconds = self._finished()
        elif any(folder.iterdir()):
            raise ValueError(
                f"{folder} holds files that are no {owner}'s: name another folder with --output"
            )
        self._save()  # from here on the folder is this run's, however it ends

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
        self._save()

    def _finished(self) -> dict[str, float]:
        """Seconds by step, as recorded for the same settings."""
        try:
            record = json.loads(self._path.read_text())
            settings, seconds = record["settings"], dict(record["seconds"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(
                f"{self._path} is not what a {self._owner} writes: "
                "name another folder with --output"
            ) from None
        if settings != self._settings:
            raise ValueError(
                f"{self._path.parent} holds a run with other settings: "
                "remove it or name another folder with --output"
            )
        return seconds

    def _save(self) -> None:
        record = {"settings": self._settings, "seconds": self.seconds}
        write_durably(self._path, json.dumps(record))
