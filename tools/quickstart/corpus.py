"""A small Common Pile of openly licensed text that every Python machine has."""

import json
import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from tqdm import tqdm

from anchored.durable_files import file_sha256, write_durably

from .documents import (
    Document,
    SpanIndex,
    code,
    cut_documents,
    docstrings,
    help_topics,
    is_held_out,
    package_modules,
    stdlib_modules,
)

EXTRA = "numerics"
"""The source that only the risky model learns from: in its held-out text is utility to win."""
SOURCE_FACTS, SPLITS = ("name", "licence", "origin", "revision"), ("documents", "heldout")
EXTRA_PACKAGES = ("numpy", "pandas")
TRAIN_OVERLAP = 0.5  # of a document's word spans: above it, the document is another one's copy
HELDOUT_OVERLAP = 0.1  # stricter: what a model has read does not measure what it has learned


@dataclass(frozen=True, kw_only=True, slots=True)
class CorpusConfig:
    """How much text is gathered; each cap is passed by one document at most."""

    docstring_bytes: int = 800_000
    topic_bytes: int = 400_000
    code_bytes: int = 700_000
    extra_bytes: int = 500_000
    heldout_bytes: int = 80_000
    """Candidates for the held-out split a source; those too near to a training text go."""
    heldout_fraction: float = 0.06
    """Share of documents that no model trains on, chosen by the hash of their text."""
    min_chars: int = 200
    """Shorter documents are dropped."""
    max_chars: int = 4000
    """Longer documents are cut at blank lines."""

    def __post_init__(self) -> None:
        if self.heldout_fraction >= 1:
            raise ValueError(f"heldout_fraction must be < 1, got {self.heldout_fraction}")
        if self.min_chars >= self.max_chars:
            raise ValueError(
                f"min_chars must be below max_chars, got {self.min_chars} and {self.max_chars}"
            )
        for name in (field.name for field in fields(self) if field.name.endswith("_bytes")):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be > 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Source:
    """Text of one origin under one licence; no held-out document is in train, nor nearly so."""

    name: str
    licence: str
    origin: str
    revision: str
    documents: tuple[Document, ...] = ()
    heldout: tuple[Document, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Corpus:
    """The mixture's sources and the extra source, which only the risky model trains on."""

    sources: tuple[Source, ...]
    extra: Source


def gather(config: CorpusConfig) -> Corpus:
    """Read the corpus from this machine's Python: a few seconds, the same result every time.

    Raises FileNotFoundError where the standard library's sources, numpy or pandas are missing.
    """
    index = SpanIndex()
    modules = stdlib_modules()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    stdlib = {
        "docstrings": (docstrings(modules), config.docstring_bytes),
        "topics": (help_topics(), config.topic_bytes),
        "code": (code(modules), config.code_bytes),
    }
    plan = [
        (Source(name, "PSF-2.0", f"{name} of the Python standard library", python), *texts)
        for name, texts in stdlib.items()
    ]
    extra_modules = [module for name in EXTRA_PACKAGES for module in package_modules(name)]
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in EXTRA_PACKAGES)
    extra = Source(EXTRA, "BSD-3-Clause", "docstrings of numpy and pandas", versions)
    plan.append((extra, docstrings(extra_modules), config.extra_bytes))
    filled = [_filled(source, texts, size, config, index) for source, texts, size in plan]
    *sources, extra = (replace(s, heldout=_unseen(s.heldout, index)) for s in filled)
    return Corpus(sources=tuple(sources), extra=extra)


def write(corpus: Corpus, folder: Path) -> None:
    """Write NAME.train.jsonl and NAME.heldout.jsonl a source, then manifest.json, into `folder`.

    A row is {"id", "text"}. The manifest comes last: a folder that has one is complete.
    """
    folder.mkdir(parents=True, exist_ok=True)
    manifest = []
    for source in (*corpus.sources, corpus.extra):
        facts = {name: getattr(source, name) for name in SOURCE_FACTS}
        for split in SPLITS:
            path = _split_file(folder, source.name, split)
            with path.open("w", encoding="utf-8", newline="\n") as file:
                for document in getattr(source, split):
                    file.write(json.dumps(asdict(document)) + "\n")
            facts[f"{split}_sha256"] = file_sha256(path)
        manifest.append(facts)
    write_durably(folder / "manifest.json", json.dumps({"sources": manifest}, indent=2) + "\n")


def read(folder: Path) -> Corpus:
    """Read what `write` wrote, the extra source last.

    Raises FileNotFoundError if the folder is not complete, ValueError if a file was changed.
    """
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    *sources, extra = (_read_source(folder, facts) for facts in manifest["sources"])
    return Corpus(sources=tuple(sources), extra=extra)


def _filled(
    source: Source,
    texts: Iterable[Document],
    max_bytes: int,
    config: CorpusConfig,
    index: SpanIndex,
) -> Source:
    """`source` with its training documents, and candidates for its held-out ones."""
    train = _Pool(max_bytes)
    heldout = _Pool(config.heldout_bytes)
    cut = cut_documents(texts, min_chars=config.min_chars, max_chars=config.max_chars)
    with tqdm(total=max_bytes, desc=f"gather {source.name}", unit="B", unit_scale=True) as bar:
        for document in cut:
            if is_held_out(document, config.heldout_fraction):
                heldout.add(document)
            elif not train.is_full and index.overlap_fraction(document.text) <= TRAIN_OVERLAP:
                train.add(document)
                index.add(document.text)
                bar.update(document.num_bytes)
            if train.is_full and heldout.is_full:
                break
    return replace(source, documents=tuple(train.documents), heldout=tuple(heldout.documents))


class _Pool:
    """Documents up to the one with which their size reaches `max_bytes`."""

    def __init__(self, max_bytes: int) -> None:
        self.documents: list[Document] = []
        self._free_bytes = max_bytes

    @property
    def is_full(self) -> bool:
        return self._free_bytes <= 0

    def add(self, document: Document) -> None:
        if not self.is_full:
            self.documents.append(document)
            self._free_bytes -= document.num_bytes


def _unseen(heldout: Iterable[Document], index: SpanIndex) -> tuple[Document, ...]:
    """The held-out documents that share little with any training document or with each other."""
    kept = []
    for document in heldout:
        if index.overlap_fraction(document.text) <= HELDOUT_OVERLAP:
            index.add(document.text)
            kept.append(document)
    return tuple(kept)


def _split_file(folder: Path, name: str, split: str) -> Path:
    return folder / f"{name}.{'train' if split == 'documents' else split}.jsonl"


def _read_source(folder: Path, facts: dict[str, Any]) -> Source:
    splits: dict[str, Any] = {}
    for split in SPLITS:
        path = _split_file(folder, facts["name"], split)
        if file_sha256(path) != facts[f"{split}_sha256"]:
            raise ValueError(f"{path} is not the file that manifest.json describes; gather again")
        with path.open(encoding="utf-8") as file:
            splits[split] = tuple(Document(**json.loads(line)) for line in file)
    return Source(**{name: facts[name] for name in SOURCE_FACTS}, **splits)
