"""What a command is to read, looked for while nothing costly has been imported."""

from pathlib import Path


def check_input(path: Path | None) -> None:
    """Raise FileNotFoundError, in one line, for a path that is no file; None is no path."""
    if path is not None and not path.is_file():
        raise FileNotFoundError(_missing(path, "file"))


def check_folder(path: Path) -> None:
    """Raise FileNotFoundError, in one line, for a path that is no folder."""
    if not path.is_dir():
        raise FileNotFoundError(_missing(path, "folder"))


def _missing(path: Path, kind: str) -> str:
    return f"{path} is no {kind}" if path.exists() else f"there is no {kind} {path}"
