"""The input files of a source: local ones, or those of a Hub dataset at a pinned revision."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

_PARQUET = ".parquet"
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_COMPRESSIONS = ("", ".gz", ".zst", ".zstd")
_SUPPORTED = (_PARQUET, *map("".join, product(_JSON_LINES, _COMPRESSIONS)))
_FORMATS = f"{', '.join((*_JSON_LINES, _PARQUET))} (JSON also compressed: .gz, .zst)"


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of documents."""

    name: str
    """Within the source: the same on every machine."""
    url: str
    """A path, or an address that datasets opens."""
    num_bytes: int
    """Its size; a source gives tokens in proportion to it."""

    @property
    def is_parquet(self) -> bool:
        return self.name.endswith(_PARQUET)


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """All input files of a source, in an order that does not depend on the machine."""

    revision: str
    """Commit of a Hub dataset, or what the user calls this version of local files."""
    files: tuple[InputFile, ...]

    def __post_init__(self) -> None:
        for file in self.files:
            if not file.name.endswith(_SUPPORTED):
                raise ValueError(f"input file {file.name} is of no supported format: {_FORMATS}")


def local_files(inputs: Sequence[Path], *, revision: str) -> SourceFiles:
    """Files, and the supported files in folders and below them, in the order of their names.

    Raises: ValueError for an input without a supported file, and for two files of one name.
    """
    files = [file for path in inputs for file in _expand(path)]
    names = [file.name for file in files]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"input files must have different names, got twice: {duplicates[0]}")
    return SourceFiles(revision, tuple(sorted(files, key=lambda file: file.name)))


def hub_files(dataset: str, *, revision: str) -> SourceFiles:
    """The training files of a Hub dataset; nothing is downloaded but their list and sizes.

    revision: a commit; shortened ones are resolved to the full hash.
    Raises: ValueError if there is no revision or the dataset cannot be listed.
    """
    if not revision:
        raise ValueError(f"dataset {dataset} needs a revision: name the commit to read")
    from datasets import load_dataset_builder
    from datasets.exceptions import DatasetNotFoundError
    from huggingface_hub import HfFileSystem
    from huggingface_hub.errors import HfHubHTTPError

    try:
        data_files = load_dataset_builder(dataset, revision=revision).config.data_files
    except (DatasetNotFoundError, HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"dataset {dataset} at revision {revision} cannot be listed: {reason}"
        ) from error
    urls = sorted(str(url) for url in (data_files or {}).get("train", []))
    if not urls:
        raise ValueError(f"dataset {dataset} at revision {revision} has no training files")
    # hf://datasets/OWNER/NAME@COMMIT/PATH, as datasets resolves them
    parts = [url.partition("@")[2].partition("/") for url in urls]
    commits = {commit for commit, _, _ in parts}
    if len(commits) != 1:
        raise ValueError(f"{urls[0]} and the other files are not of one commit: {sorted(commits)}")
    folder = f"{urls[0].partition('@')[0]}@{parts[0][0]}".removeprefix("hf://")
    try:
        sizes: Any = HfFileSystem().find(folder, detail=True)
        files = [
            InputFile(path, url, int(sizes[f"{folder}/{path}"]["size"]))
            for url, (_, _, path) in zip(urls, parts, strict=True)
        ]
    except (HfHubHTTPError, OSError, KeyError) as error:
        raise ValueError(f"the sizes of the files of {folder} are not known: {error}") from error
    return SourceFiles(commits.pop(), tuple(files))


def _expand(path: Path) -> list[InputFile]:
    if path.is_file():
        return [InputFile(path.name, str(path), path.stat().st_size)]
    if not path.is_dir():
        raise ValueError(f"input {path} does not exist")
    files = [file for file in path.rglob("*") if file.is_file() and file.name.endswith(_SUPPORTED)]
    if not files:
        raise ValueError(f"input folder {path} holds no file of a supported format: {_FORMATS}")
    return [
        InputFile(file.relative_to(path).as_posix(), str(file), file.stat().st_size)
        for file in files
    ]
