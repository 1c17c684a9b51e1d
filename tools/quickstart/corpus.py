"""Openly licensed text that every Python machine has: a small Common Pile for the safe model."""

import ast
import hashlib
import inspect
import json
import platform
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from pydoc_data import topics

from anchored.durable_files import write_durably

LICENSE = "PSF-2.0"
HELD_OUT = "documentation"
"""The held-out set: documents that the safe model made here is not trained on."""
HELD_OUT_SHARE = 0.02
MIN_CHARS, MAX_CHARS = 200, 4000
"""Shorter documents say little; longer ones are cut at blank lines."""
EXCLUDED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data"}
"""Tests and tables are poor reading, and the topics are a source by themselves."""
EXCLUDED_FOLDERS |= {"site-packages", "dist-packages", "ensurepip", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Source:
    """Texts of one origin."""

    name: str
    texts: list[str]
    heldout: list[str]

    @property
    def revision(self) -> str:
        """The Python that they were read from."""
        return f"{platform.python_implementation()} {platform.python_version()}"


def gather(folder: Path, *, max_bytes: int) -> None:
    """Write SOURCE.json a source, with `max_bytes` of text at most; the same every time.

    Raises FileNotFoundError where Python ships without the sources of its standard library.
    """
    # The chapters of the language reference that `help()` shows.
    chapters = (inspect.cleandoc(topics.topics[name]) for name in sorted(topics.topics))
    for name, documents in {"docstrings": _docstrings(), "topics": chapters}.items():
        texts: list[str] = []
        heldout: list[str] = []
        size = 0
        for text in _cut(documents):
            # By the hash of a text, so that no order or length of the list moves it.
            is_held_out = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) < (
                HELD_OUT_SHARE * 16**8
            )
            (heldout if is_held_out else texts).append(text)
            size += len(text.encode())
            if size >= max_bytes:
                break
        write_durably(folder / f"{name}.json", json.dumps([texts, heldout]))


def read_sources(folder: Path) -> list[Source]:
    """The sources that `gather` wrote."""
    files = sorted(folder.glob("*.json"))
    return [Source(file.stem, *json.loads(file.read_text(encoding="utf-8"))) for file in files]


def _docstrings() -> Iterator[str]:
    """Every docstring of the standard library, its modules in an order unlike the alphabet's, so
    that the first few are a fair sample."""
    library = Path(sysconfig.get_paths()["stdlib"])
    files = [path for path in library.rglob("*.py") if _is_wanted(path.relative_to(library))]
    if not files:
        raise FileNotFoundError("this Python has no standard library sources to read")
    by_hash = {
        hashlib.sha256(str(path.relative_to(library)).encode()).digest(): path for path in files
    }
    for _, path in sorted(by_hash.items()):
        with tokenize.open(path) as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # stray escapes are the concern of the module's authors
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield ast.get_docstring(node) or ""


def _is_wanted(path: Path) -> bool:
    # _sysconfigdata names paths of the machine that built Python.
    return EXCLUDED_FOLDERS.isdisjoint(path.parts) and not path.name.startswith("_sysconfigdata")


def _cut(documents: Iterable[str]) -> Iterator[str]:
    """The documents cut at blank lines into pieces of MIN_CHARS to MAX_CHARS."""
    for document in documents:
        piece = ""
        for paragraph in document.split("\n\n"):
            if len(piece) + len(paragraph) > MAX_CHARS:
                if len(piece) >= MIN_CHARS:
                    yield piece
                piece = ""
            piece = f"{piece}\n\n{paragraph}".strip("\n")
        if len(piece) >= MIN_CHARS:
            yield piece
