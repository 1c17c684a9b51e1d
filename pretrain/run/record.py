"""The record of a run in its dump folder: what decides its weights, and what led to it."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ...durable_files import locked, write_durably

RECORD_NAME = "run.json"
LOCK_NAME = "lock"
SCHEMA = "anchored-run/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Model, tokenizer and everything that decides the weights after a step."""

    model: dict[str, Any]
    """The shape, in the names of a Hugging Face config."""
    tokenizer_sha256: str
    bos_id: int | None
    eos_id: int
    identity: dict[str, Any]
    """Two runs with equal identities give the same weights."""
    data: dict[str, Any]
    """The `data_record` of the data plan."""
    earlier: dict[str, Any] | None = None
    """The run whose weights this one began with: its record, and its "step"."""
    forks: list[dict[str, Any]] = field(default_factory=list)
    """The checkpoints of other runs that it went on from: "from", "step", "skip_steps" and
    "settings" of each, before and after."""
    settings: dict[str, Any] = field(default_factory=dict)
    """All settings of the last start, by their dotted names."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Each start: the "step" it went on after, "num_processes", the "environment" of its first
    process, and its "changes" of settings, before and after."""
    wandb_id: str = ""
    """Id of the run in Weights & Biases, on every start; empty where it was never in use."""

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """The record in a dump folder. Raises ValueError if it is absent, damaged or of another
        schema."""
        path = folder / RECORD_NAME
        if not path.is_file():
            raise ValueError(f"{folder} has no {RECORD_NAME}: it is not the folder of a run")
        try:
            fields = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not isinstance(fields, dict) or fields.pop("schema", None) != SCHEMA:
            raise ValueError(f"{path} is not the record of a run: its schema is not {SCHEMA}")
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Replace the record in a dump folder."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"
        write_durably(folder / RECORD_NAME, text)

    def started(
        self,
        step: int,
        settings: dict[str, Any],
        *,
        num_processes: int,
        environment: dict[str, Any],
    ) -> "RunRecord":
        """This record with one start more, after a step and with all settings of it."""
        changed = changes(self.settings, settings) if self.starts else {}
        start = {"step": step, "num_processes": num_processes, "environment": environment}
        return replace(self, settings=settings, starts=[*self.starts, start | {"changes": changed}])

    def stages(self, step: int) -> list[tuple["RunRecord", int]]:
        """The runs that led to the weights after `step`, with their last steps, in order."""
        if self.earlier is None:
            return [(self, step)]
        fields = dict(self.earlier)
        earlier_step = fields.pop("step")
        return [*RunRecord(**fields).stages(earlier_step), (self, step)]

    def difference(self, other: "RunRecord") -> str | None:
        """The first setting in which `other` is another run, in words; None if it is the same."""
        ours, theirs = (
            run.identity | {f"model.{key}": value for key, value in run.model.items()}
            for run in (self, other)
        )
        for key, (before, now) in changes(ours, theirs).items():
            return f"{key} was {before} and is now {now}"
        return None


def changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, list[Any]]:
    """The differences between two tables: [before, after] by name."""
    return {
        name: [before.get(name), after.get(name)]
        for name in before | after
        if before.get(name) != after.get(name)
    }


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """A dump folder, which is made, is locked while the context or this process lasts.

    Raises: ValueError naming who holds it, OSError if the folder cannot be written or locked.
    """
    path = folder / LOCK_NAME
    with locked(path, waits=False) as is_ours:
        if not is_ours:
            holder = path.read_text().strip() or "another process"
            raise ValueError(f"{folder} is in use by {holder}: one run at a time")
        path.write_text(f"process {os.getpid()} on {socket.gethostname()}\n")
        yield
