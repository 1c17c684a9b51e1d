"""The checkpoint folder of a run: which steps it holds, and which of them are whole."""

import pickle
import re
from pathlib import Path

from torch.distributed.checkpoint import FileSystemReader

_STEP_NAME = re.compile(r"step-(\d+)")


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
