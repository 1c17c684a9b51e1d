"""The checkpoint folder of a run: which steps it holds, and which of them are whole."""

import pickle
import re
from pathlib import Path

from torch.distributed.checkpoint import FileSystemReader

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
    return all(_has_size(checkpoint / name, size) for name, size in sizes.items())


def _has_size(path: Path, size: int) -> bool:
    return path.is_file() and path.stat().st_size >= size
