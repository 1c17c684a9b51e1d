"""The record of a run in its dump folder: what decides its weights, and what led to it."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...durable_files import write_durably

RECORD_NAME = "run.json"
SCHEMA = "anchored-run/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRecord:
    """Model, tokenizer and everything that decides the weights after a given step."""

    model: dict[str, Any]
    """The shape, in the names of a Hugging Face config."""
    tokenizer_sha256: str
    bos_id: int
    eos_id: int
    identity: dict[str, Any]
    """Two runs with equal identities give the same weights."""
    data: dict[str, Any]
    """What `data_record` says of the data plan."""
    earlier: dict[str, Any] | None = None
    """The run whose weights this one began with: its record, and its "step"."""

    @classmethod
    def read(cls, folder: Path) -> "RunRecord":
        """The record in a dump folder. Raises ValueError if it is absent or damaged."""
        path = folder / RECORD_NAME
        if not path.is_file():
            raise ValueError(f"{folder} has no {RECORD_NAME}: it is not the folder of a run")
        try:
            fields = json.loads(path.read_text())
            if fields.pop("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not the record of a run: {error}") from error

    def write(self, folder: Path) -> None:
        """Replace the record in a dump folder."""
        text = json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"
        write_durably(folder / RECORD_NAME, text)

    def after(self, earlier: "RunRecord", step: int) -> "RunRecord":
        """This record, of a run that began with another one's weights after `step`."""
        return replace(self, earlier={**asdict(earlier), "step": step})

    def stages(self, step: int) -> list[tuple["RunRecord", int]]:
        """The runs behind the weights after `step` with their last steps, the first run first."""
        if self.earlier is None:
            return [(self, step)]
        fields = dict(self.earlier)
        earlier_step = fields.pop("step")
        return [*RunRecord(**fields).stages(earlier_step), (self, step)]

    def difference(self, other: "RunRecord") -> str | None:
        """The first setting in which `other` is another run, in words; None if it is the same."""
        mine = self.identity | {f"model.{key}": value for key, value in self.model.items()}
        theirs = other.identity | {f"model.{key}": value for key, value in other.model.items()}
        for key in mine | theirs:
            if mine.get(key) != theirs.get(key):
                return f"{key} was {mine.get(key)} and is now {theirs.get(key)}"
        return None
