"""What the dump folder of a run says: its record, and which checkpoints are whole."""

import json
import pickle
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader

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


_STEP_NAME = re.compile(r"step-(\d+)")


def checkpoint_step(checkpoint: Path) -> int:
    """The step N of a folder step-N. Raises ValueError for any other name."""
    if not (match := _STEP_NAME.fullmatch(checkpoint.name)):
        raise ValueError(f"{checkpoint} is not a checkpoint: its name must be step-N")
    return int(match[1])


def last_complete(checkpoint: Path, count: int) -> list[Path]:
    """A checkpoint and the whole ones before it, `count` together, in ascending order.

    Raises: ValueError if it is not whole, or if there are fewer.
    """
    if not is_complete(checkpoint):
        raise ValueError(f"{checkpoint} is not a complete checkpoint")
    last = checkpoint_step(checkpoint)
    folders = checkpoint_steps(checkpoint.parent)
    whole = [path for step, path in folders.items() if step <= last and is_complete(path)]
    if count < 1 or len(whole) < count:
        raise ValueError(
            f"{checkpoint.parent} has {len(whole)} complete checkpoints up to {checkpoint.name}, "
            f"and {count} were asked for"
        )
    return whole[-count:]


def checkpoint_steps(folder: Path | str) -> dict[int, Path]:
    """Folders step-N by their step, in ascending order, whole or not."""
    folder = Path(folder)
    if not folder.is_dir():
        return {}
    matches = [(_STEP_NAME.fullmatch(path.name), path) for path in folder.iterdir()]
    return dict(sorted((int(match[1]), path) for match, path in matches if match))


def is_complete(checkpoint: Path) -> bool:
    """Whether a step folder has its metadata, and every file that it lists in full length.

    The metadata is written last, so a process killed while saving leaves none.
    """
    if not (checkpoint / ".metadata").is_file():
        return False
    try:
        metadata = FileSystemReader(checkpoint).read_metadata()
    except (pickle.UnpicklingError, EOFError):  # cut short
        return False
    sizes: dict[str, int] = {}
    for item in metadata.storage_data.values():
        end = item.offset + item.length
        sizes[item.relative_path] = max(end, sizes.get(item.relative_path, 0))
    files = {checkpoint / name: size for name, size in sizes.items()}
    return all(path.is_file() and path.stat().st_size >= size for path, size in files.items())
