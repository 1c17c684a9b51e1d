"""Documents of plain text, and what it takes to cut, compare and split them."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

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
