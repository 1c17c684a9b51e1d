"""One document on its way into token shards, and the rules that decide where it goes."""

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

NO_LICENCE = "(none given)"
DEFAULT_MAX_DOCUMENT_BYTES = 20_000_000
# Single damaged records of a crawl stay far below it; a wrong field passes it in seconds.
DEFAULT_MAX_INVALID_DOCUMENTS = 1000
DEFAULT_SHARD_TOKENS = 1 << 28  # 1 GiB of uint32
_HASH_RANGE = 1 << 64


class Verdict(StrEnum):
    """What becomes of a document."""

    TRAIN = "train"
    HELDOUT = "heldout"
    EMPTY = "empty"
    INVALID = "invalid"
    OVERSIZED = "oversized"
    REFUSED = "refused"

    @property
    def is_kept(self) -> bool:
        return self in (Verdict.TRAIN, Verdict.HELDOUT)


class Problem(StrEnum):
    """Why a record has no text that can be read."""

    NO_TEXT = "no text in the text field"
    NOT_JSON = "not JSON"
    NOT_UTF8 = "not UTF-8"
    DAMAGED = "the rest of a damaged file"


@dataclass(frozen=True, slots=True)
class Document:
    """A record of an input file."""

    record: int
    """Line or row in the input file, from 0."""
    text: bytes | None
    """UTF-8; None if the record could not be read as such."""
    licences: tuple[str, ...] = ()
    """As the record states them; none if it does not."""
    problem: Problem | None = None
    """Of a record without text."""

    @property
    def licence(self) -> str:
        """One line for histograms and ledgers."""
        return " AND ".join(self.licences) or NO_LICENCE


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentRules:
    """Which documents are kept, and which of them are held out."""

    licences: tuple[str, ...] = ()
    """Allow-list of names, shell patterns allowed, case ignored; empty allows every document."""
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    heldout_fraction: float = 0.0

    def __post_init__(self) -> None:
        if self.max_document_bytes < 1:
            raise ValueError(
                f"max_document_bytes must be at least 1, got {self.max_document_bytes}"
            )
        if not 0 <= self.heldout_fraction < 1:
            raise ValueError(f"heldout_fraction must be in [0, 1), got {self.heldout_fraction}")

    def verdict(self, document: Document) -> Verdict:
        """Where a document goes; the first rule that it breaks counts."""
        if document.text is None:
            return Verdict.INVALID
        if not document.text:
            return Verdict.EMPTY
        if len(document.text) > self.max_document_bytes:
            return Verdict.OVERSIZED
        if not self._allows(document):
            return Verdict.REFUSED
        return Verdict.HELDOUT if self._holds_out(document.text) else Verdict.TRAIN

    def _allows(self, document: Document) -> bool:
        if not self.licences:
            return True
        return bool(document.licences) and all(map(self._is_listed, document.licences))

    def _is_listed(self, licence: str) -> bool:
        name = licence.lower()
        return any(fnmatchcase(name, pattern.lower()) for pattern in self.licences)

    def _holds_out(self, text: bytes) -> bool:
        if not self.heldout_fraction:
            return False
        digest = hashlib.blake2b(text, digest_size=8).digest()
        return int.from_bytes(digest, "little") < self.heldout_fraction * _HASH_RANGE
