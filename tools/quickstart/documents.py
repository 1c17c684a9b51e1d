"""Documents of plain text: from an installed Python, cut, compared and split."""

import ast
import hashlib
import inspect
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from pydoc_data import topics

SPAN_WORDS = 8  # long enough that two texts share one by copying, not by chance


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text and the name it can be found by, which is never a path of this machine."""

    id: str
    text: str

    @property
    def sha256(self) -> str:
        """Hex digest of the text in UTF-8."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def num_bytes(self) -> int:
        """Length of the text in UTF-8."""
        return len(self.text.encode())


class SpanIndex:
    """The spans of SPAN_WORDS words in every text added so far."""

    def __init__(self) -> None:
        self._spans: set[tuple[str, ...]] = set()

    def add(self, text: str) -> None:
        """Take in the spans of `text`."""
        self._spans.update(_word_spans(text))

    def overlap_fraction(self, text: str) -> float:
        """Fraction in [0, 1] of the spans of `text` that were added before; 0 if it has none."""
        spans = _word_spans(text)
        return sum(span in self._spans for span in spans) / max(len(spans), 1)


def cut_documents(
    documents: Iterable[Document], *, min_chars: int, max_chars: int
) -> Iterator[Document]:
    """Yield the documents in order, cut at blank lines into pieces of at most `max_chars`.

    Trailing spaces go, runs of blank lines become one. Piece n of a document that was cut is named
    `id#n`. A paragraph longer than `max_chars` stays whole; a piece below `min_chars` is dropped.
    """
    for document in documents:
        pieces = _paragraph_groups(document.text, max_chars)
        for number, piece in enumerate(pieces):
            name = f"{document.id}#{number}" if len(pieces) > 1 else document.id
            if len(piece) >= min_chars:
                yield Document(id=name, text=piece)


def is_held_out(document: Document, heldout_fraction: float) -> bool:
    """Whether the document's own hash puts it into the held-out split: stable across runs.

    heldout_fraction: expected share of documents held out, in [0, 1].
    """
    return int(document.sha256[:8], 16) < heldout_fraction * 16**8


def _word_spans(text: str) -> list[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return [tuple(words[i : i + SPAN_WORDS]) for i in range(len(words) - SPAN_WORDS + 1)]


def _paragraph_groups(text: str, max_chars: int) -> list[str]:
    lines = "\n".join(line.rstrip() for line in text.expandtabs().splitlines())
    groups: list[str] = []
    for paragraph in re.split(r"\n{2,}", lines.strip("\n")):
        if groups and len(groups[-1]) + len(paragraph) + 2 <= max_chars:
            groups[-1] += "\n\n" + paragraph
        else:
            groups.append(paragraph)
    return groups


# Tests and tables are poor reading, third-party folders have licences of their own, topics are a
# source by themselves, and _sysconfigdata* (below) names paths of the machine that built Python.
EXCLUDED_FOLDERS = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "encodings", "pydoc_data"}
EXCLUDED_FOLDERS |= {"site-packages", "dist-packages", "ensurepip", "__pycache__"}

HasDocstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def stdlib_modules() -> list[tuple[str, Path]]:
    """(name, file) of each Python source file of the standard library, named "Lib/...".

    The order is fixed but unrelated to the alphabet, so that the first few are a fair sample.
    Raises FileNotFoundError if this Python ships without its sources.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = folder.rglob("*.py")
    modules = _shuffled((f"Lib/{path.relative_to(folder).as_posix()}", path) for path in files)
    if not modules:
        raise FileNotFoundError("this Python has no standard library sources to read")
    return modules


def package_modules(package: str) -> list[tuple[str, Path]]:
    """(name, file) of each Python source file of an installed package, tests left out.

    The order is as for `stdlib_modules`. Raises FileNotFoundError if the package is not installed.
    """
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError as error:
        raise FileNotFoundError(f"package {package!r} is not installed") from error
    names = (file for file in files if file.suffix == ".py" and file.parts[0] == package)
    return _shuffled((file.as_posix(), Path(str(file.locate()))) for file in names)


def docstrings(modules: list[tuple[str, Path]]) -> Iterator[Document]:
    """Yield every docstring of the modules, dedented, named "file:qualified.name"."""
    for name, path in modules:
        for qualified_name, node in _definitions(_parse(_read(path)), ()):
            text = ast.get_docstring(node, clean=True)
            if text:
                yield Document(id=f"{name}:{qualified_name}", text=text)


def code(modules: list[tuple[str, Path]]) -> Iterator[Document]:
    """Yield the source text of each module with its docstrings cut out; it still parses.

    Without the cut a docstring held out of one source would be trained on through the other.
    """
    for name, path in modules:
        text = _read(path)
        lines = text.encode().split(b"\n")  # ast counts columns in bytes, lines by "\n" alone
        for _, node in _definitions(_parse(text), ()):
            if ast.get_docstring(node, clean=False) is not None:
                _cut_docstring(lines, node)
        yield Document(id=name, text=b"\n".join(lines).decode())


def help_topics() -> Iterator[Document]:
    """Yield the chapters of the language reference that `help()` shows, named "topic:name"."""
    for name in sorted(topics.topics):
        yield Document(id=f"topic:{name}", text=inspect.cleandoc(topics.topics[name]))


def _definitions(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, HasDocstring]]:
    if isinstance(node, HasDocstring):
        names = names if isinstance(node, ast.Module) else (*names, node.name)
        yield ".".join(names) or "module", node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # which defines nothing that has a docstring
            yield from _definitions(child, names)


def _cut_docstring(lines: list[bytes], node: HasDocstring) -> None:
    first, last = node.body[0].lineno - 1, (node.body[0].end_lineno or 0) - 1
    before = lines[first][: node.body[0].col_offset]
    after = lines[last][node.body[0].end_col_offset :]
    is_alone = len(node.body) > 1 and not before.strip() and not after.strip()
    lines[first : last + 1] = [b""] * (last + 1 - first)  # later rows keep their numbers
    if not is_alone:
        lines[first] = before + b"..." + after


def _shuffled(modules: Iterable[tuple[str, Path]]) -> list[tuple[str, Path]]:
    """Those that are wanted, by the hashes of their names."""
    wanted = []
    for name, path in modules:
        *folders, file = name.split("/")
        if EXCLUDED_FOLDERS.isdisjoint(folders) and not file.startswith("_sysconfigdata"):
            wanted.append((hashlib.sha256(name.encode()).hexdigest(), name, path))
    return [(name, path) for _, name, path in sorted(wanted)]


def _read(path: Path) -> str:
    with tokenize.open(path) as file:  # honours the file's own coding line
        return file.read()


def _parse(text: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # stray escapes are the concern of the module's authors
        return ast.parse(text)
