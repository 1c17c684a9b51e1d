"""Steps that go on where they were interrupted, and work that several processes share."""

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...durable_files import locked, write_durably
from ...identities import check_same, differences

POLL_SECONDS = 0.2


class Steps:
    """Finished steps, in steps.json of a folder, each with what decided its results. A step is done
    again where that has changed. Several processes may begin a folder at once; one of them runs the
    steps."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], *, owner: str = "", total: int = 0
    ) -> None:
        """settings: all that decides the results, without a path, for JSON. owner: the one program
        that writes such folders; "" if others write into it too. total: steps, for titles. Raises
        ValueError if the folder belongs to other settings, or to something else: it holds files,
        and no steps.json."""
        self._settings, self._path, self._owner = settings, folder / "steps.json", owner
        self._count, self._total = 0, f"/{total}" if total else ""
        self._done: dict[str, dict[str, Any]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        # Listed first: another process of this run writes its files after its steps.json.
        others = [file for file in folder.iterdir() if not file.name.startswith(self._path.name)]
        if self._path.exists():
            self._done = self._recorded()
        elif others and owner:
            raise ValueError(
                f"{folder} holds files that are no {owner}'s: name another folder with --output"
            )
        else:
            self._save()  # from here on the folder is this run's, however it ends

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds of each finished step, in their order."""
        return {name: step["seconds"] for name, step in self._done.items()}

    def run(
        self,
        name: str,
        work: Callable[[], object],
        *,
        identity: Mapping[str, Any] | None = None,
        output: Path | None = None,
    ) -> None:
        """Do `work`, which must be safe to start again, unless it was finished before. identity:
        all that decides the step besides the folder's settings. output: a file that exists once it
        is done. Work that returns False has left something to do."""
        self._count += 1
        title, step = f"[{self._count}{self._total}] {name}", self._done.get(name)
        changed = differences(step["identity"], identity or {}) if step else []
        if step and not changed and (output is None or output.exists()):
            print(f"{title}: done before, skipped", file=sys.stderr)
            return
        print(f"{title}: again, as {'; '.join(changed)}" if changed else title, file=sys.stderr)
        start = time.perf_counter()
        if work() is not False:
            seconds = round(time.perf_counter() - start, 2)
            self._done[name] = {"seconds": seconds, "identity": identity or {}}
            self._save()

    def forget(self) -> None:
        """Do all steps again when they are run next."""
        self._done = {}
        self._save()

    def _recorded(self) -> dict[str, dict[str, Any]]:
        """Finished steps, as recorded for the same settings."""
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            settings, steps = dict(record["settings"]), dict(record["steps"])
            done = {
                name: {"seconds": float(step["seconds"]), "identity": dict(step["identity"])}
                for name, step in steps.items()
            }
        except (ValueError, KeyError, TypeError):
            if not self._owner:  # the steps write all of their files again
                return {}
            raise ValueError(
                f"{self._path} is not what a {self._owner} writes: "
                "name another folder with --output"
            ) from None
        advice = "restore them, or name another folder with --output"
        check_same(settings, self._settings, self._path.parent, advice=advice)
        return done

    def _save(self) -> None:
        record = {"settings": self._settings, "steps": self._done}
        write_durably(self._path, json.dumps(record))


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of work that one process does."""

    name: str
    """Name of the file that is locked for the task, unique among tasks."""
    result: Path
    """A file that exists, whole, once the work is done; checked before and under the lock."""
    work: Callable[[], None]


def share(tasks: Sequence[Task], locks: Path, *, waits: bool = True) -> None:
    """Do the tasks that no other process has done or is doing, in their order. locks: a folder
    that all processes reach, on a file system that locks (flock). A process that dies releases its
    lock, and another one starts the task again. waits: return once all tasks are done; else as soon
    as none is free."""
    is_shown = False
    while left := [task for task in tasks if not task.result.exists()]:
        if any([_is_done_here(task, locks) for task in left]):
            continue
        if not waits:
            return
        if not is_shown:
            print(f"waiting for {len(left)} tasks of other processes", file=sys.stderr)
            is_shown = True
        time.sleep(POLL_SECONDS)


def _is_done_here(task: Task, locks: Path) -> bool:
    with locked(locks / task.name, waits=False) as is_ours:
        if is_free := is_ours and not task.result.exists():
            task.work()
        return is_free
