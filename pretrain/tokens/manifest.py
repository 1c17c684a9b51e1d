"""The manifest of a folder of token shards, and the counts that it reports."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...configs.config_file import from_table
from .documents import Document, Verdict

SCHEMA = "anchored-tokens/2"
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Three files: uint32 tokens, int64 offsets of their documents, and where each came from.

    All are little-endian. Provenance is two uint32 a document: its record number in the input
    file (lines or rows, from 0), and the place of its licence in `licences`.
    """

    tokens_file: str
    tokens_sha256: str
    num_tokens: int
    documents_file: str
    documents_sha256: str
    num_documents: int
    provenance_file: str
    provenance_sha256: str
    input_file: str
    """Name of the file the documents were read from, within the source."""
    licences: tuple[str, ...]
    """Licences of the shard's documents, in order of first appearance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a folder of shards holds, and where it came from."""

    source: str
    revision: str
    split: str
    """"train" or "heldout"; a document's hash decides, so copies never fall on both sides."""
    heldout_fraction: float
    licences: dict[str, int]
    """Number of documents under each licence."""
    refused_licences: dict[str, int]
    """Number of documents left out for each licence that is not on the allow-list."""
    tokenizer_sha256: str
    vocab_size: int
    bos_id: int
    eos_id: int
    num_documents: int
    num_empty_documents: int
    """Documents without text, left out of the shards."""
    num_invalid_documents: int
    """Documents left out because there is no text in them that can be read."""
    num_oversized_documents: int
    """Documents left out because they are longer than max_document_bytes."""
    max_document_bytes: int
    num_bytes: int
    """UTF-8 bytes of the text that was tokenised."""
    num_tokens: int
    """Tokens in all shards, BOS and EOS included."""
    shards: tuple[Shard, ...]
    invalid_documents: dict[str, int] = field(default_factory=dict)
    """Of num_invalid_documents, how many have which problem; empty where that was not counted."""
    num_contaminated_documents: int = 0
    """Documents left out because they share passages with texts that are not to be trained on."""
    decontamination: dict[str, object] = field(default_factory=dict)
    """What the report says that left them out; empty where nothing was searched."""

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """A folder's manifest. Raises ValueError if it is absent, damaged or of another schema."""
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise ValueError(f"no token shards in {folder}: {MANIFEST_NAME} is missing")
        try:
            table = json.loads(path.read_text())
            if table.pop("schema") != SCHEMA:
                raise ValueError(f"its schema is not {SCHEMA}")
            manifest: Manifest = from_table(cls, table)
            return manifest
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not a token shard manifest: {error}") from error

    def to_json(self) -> str:
        """The text of manifest.json: the same shards always give the same bytes."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2) + "\n"


@dataclass(kw_only=True)
class DocumentTally:
    """Counts over documents; tallies of pieces add up to the tally of the whole."""

    verdicts: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)
    """UTF-8 bytes kept, by split."""
    licences: dict[str, Counter[str]] = field(default_factory=dict)
    """Documents by verdict (train, heldout, refused) and licence."""
    problems: Counter[str] = field(default_factory=Counter)
    """Invalid documents by what is wrong with them."""

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> "DocumentTally":
        """The tally of a JSON object of its fields."""
        licences = {verdict: Counter(of) for verdict, of in table["licences"].items()}
        others: Any = {name: Counter(of) for name, of in table.items() if name != "licences"}
        return cls(licences=licences, **others)

    @classmethod
    def total(cls, tallies: Iterable["DocumentTally"]) -> "DocumentTally":
        """The tally of all pieces together."""
        whole = cls()
        for tally in tallies:
            whole += tally
        return whole

    def add(self, document: Document, verdict: Verdict) -> None:
        self.verdicts[verdict.value] += 1
        if verdict.is_kept:
            self.num_bytes[verdict.value] += len(document.text or b"")
        if verdict.is_kept or verdict is Verdict.REFUSED:
            self.licences.setdefault(verdict.value, Counter())[document.licence] += 1
        if document.problem:
            self.problems[document.problem.value] += 1

    def __iadd__(self, other: "DocumentTally") -> "DocumentTally":
        self.verdicts += other.verdicts
        self.num_bytes += other.num_bytes
        self.problems += other.problems
        for verdict, counts in other.licences.items():
            self.licences.setdefault(verdict, Counter()).update(counts)
        return self

    def histogram(self, verdict: Verdict) -> dict[str, int]:
        """Documents by licence, the most frequent first, then by name."""
        counts = self.licences.get(verdict, Counter())
        return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
