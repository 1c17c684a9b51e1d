"""Documents to shards: segments, in which work is saved and resumed, then a folder's manifests."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...configs.config_file import from_table
from ...durable_files import new_folder, sync, write_durably
from .documents import DEFAULT_SHARD_TOKENS, Document, DocumentRules, Verdict
from .shards import MANIFEST_NAME, Manifest, Shard, TokenShards
from .tokenizer import DocumentEncoder, EncodedDocument

HELDOUT_FOLDER = "heldout"


@dataclass(kw_only=True)
class DocumentTally:
    """Counts over documents; tallies of pieces add up to the tally of the whole."""

    verdicts: Counter[str] = field(default_factory=Counter)
    num_bytes: Counter[str] = field(default_factory=Counter)
    """UTF-8 bytes kept, by split."""
    licenses: Counter[str] = field(default_factory=Counter)
    """Documents by verdict (train, heldout, refused) and license, as "VERDICT LICENSE"."""
    problems: Counter[str] = field(default_factory=Counter)
    """Invalid documents by what is wrong with them."""

    @classmethod
    def total(cls, tallies: Iterable["DocumentTally"]) -> "DocumentTally":
        """The tally of all pieces together."""
        whole = cls()
        for tally in tallies:
            for name, counts in vars(whole).items():
                counts.update(getattr(tally, name))
        return whole

    def add(self, document: Document, verdict: Verdict) -> None:
        self.verdicts[verdict.value] += 1
        if verdict.is_kept:
            self.num_bytes[verdict.value] += len(document.text or b"")
        if verdict.is_kept or verdict is Verdict.REFUSED:
            self.licenses[f"{verdict} {document.license}"] += 1
        if document.problem:
            self.problems[document.problem.value] += 1

    def histogram(self, verdict: Verdict) -> dict[str, int]:
        """Documents by license, the most frequent first, then by name."""
        of_verdict = f"{verdict} "
        named = {n: count for n, count in self.licenses.items() if n.startswith(of_verdict)}
        common = sorted(named.items(), key=lambda item: (-item[1], item[0]))
        return {name.removeprefix(of_verdict): count for name, count in common}


class ShardFiles:
    """Tokens go to disk as they come; offsets and provenance follow when the shard is closed.

    A file of the same name, left by a process that was killed, is written over.
    """

    def __init__(self, folder: Path, name: str, *, input_file: str) -> None:
        """name: what follows "tokens-" in the file names."""
        self._folder, self._name, self._input_file = folder, name, input_file
        self.file: BinaryIO = (folder / f"tokens-{name}.bin").open("wb")
        self._digest = hashlib.sha256()
        self._offsets = [0]
        self._provenance: list[tuple[int, int]] = []
        self._licenses: dict[str, int] = {}

    @property
    def num_tokens(self) -> int:
        return self._offsets[-1]

    def add(self, token_ids: np.ndarray, *, record: int, license: str) -> None:
        """Append a document: token_ids (num_tokens,) uint32, its record number and license."""
        self.file.write(data := token_ids.tobytes())
        self._digest.update(data)
        self._offsets.append(self.num_tokens + len(token_ids))
        self._provenance.append((record, self._licenses.setdefault(license, len(self._licenses))))

    def close(self) -> Shard:
        """Finish the files and describe them."""
        sync(self.file)
        self.file.close()
        offsets, provenance = (f"{kind}-{self._name}.bin" for kind in ("documents", "provenance"))
        return Shard(
            tokens_file=f"tokens-{self._name}.bin",
            tokens_sha256=self._digest.hexdigest(),
            num_tokens=self.num_tokens,
            documents_file=offsets,
            documents_sha256=self._write(offsets, np.array(self._offsets, dtype="<i8")),
            num_documents=len(self._provenance),
            provenance_file=provenance,
            provenance_sha256=self._write(provenance, np.array(self._provenance, dtype="<u4")),
            input_file=self._input_file,
            licenses=tuple(self._licenses),
        )

    def _write(self, name: str, array: np.ndarray) -> str:
        data = array.tobytes()
        with (self._folder / name).open("wb") as file:
            file.write(data)
            sync(file)
        return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Consecutive records of one input file: at most one shard of each split, and their tally.

    Where a segment ends depends on the input alone, so that a run that was killed cuts the same
    segments when it goes on.
    """

    next_record: int
    """The first record after the segment."""
    is_last: bool
    shards: dict[str, Shard]
    """Shards by split; a split without documents has none."""
    tally: DocumentTally

    @classmethod
    def read(cls, path: Path) -> "Segment":
        """The segment that `write` recorded."""
        table = json.loads(path.read_text())
        shards = {split: from_table(Shard, shard) for split, shard in table.pop("shards").items()}
        tally = {name: Counter(counts) for name, counts in table.pop("tally").items()}
        return cls(shards=shards, tally=DocumentTally(**tally), **table)

    def write(self, path: Path) -> None:
        """Record the segment; its shards must be complete on disk."""
        write_durably(path, json.dumps(self, default=vars, indent=2) + "\n")


def write_segments(
    documents: Iterable[EncodedDocument],
    folder: Path,
    *,
    max_tokens: int,
    input_file: str = "",
    prefix: str = "",
    first_index: int = 0,
) -> Iterator[Segment]:
    """Write shards and yield each segment when its files are complete on disk; at least one.

    max_tokens: a document that would pass it ends the segment; a longer one has one for itself.
    input_file: where the documents are from. prefix: begins the number of every shard.
    """
    index, next_record = first_index, 0
    shards: dict[Verdict, ShardFiles] = {}
    tally = DocumentTally()

    def segment(next_record: int, *, is_last: bool) -> Segment:
        splits = [split for split in Verdict if split in shards]  # in the order of Verdict
        closed = {split.value: shards[split].close() for split in splits}
        return Segment(next_record=next_record, is_last=is_last, shards=closed, tally=tally)

    try:
        for encoded in documents:
            document, verdict, token_ids = encoded.document, encoded.verdict, encoded.token_ids
            # 1. A document that its shard has no room for ends the segment.
            shard = shards.get(verdict)
            if shard and token_ids is not None and shard.num_tokens + len(token_ids) > max_tokens:
                yield segment(document.record, is_last=False)
                index, shards, tally = index + 1, {}, DocumentTally()
            # 2. Every document is counted, and written where it is kept.
            next_record = document.record + 1
            tally.add(document, verdict)
            if token_ids is None:
                continue
            if verdict not in shards:
                split_folder = folder if verdict is Verdict.TRAIN else folder / HELDOUT_FOLDER
                split_folder.mkdir(exist_ok=True)
                name = f"{prefix}{index:05d}"
                shards[verdict] = ShardFiles(split_folder, name, input_file=input_file)
            shards[verdict].add(token_ids, record=document.record, license=document.license)
        yield segment(next_record, is_last=True)
    finally:
        for shard in shards.values():
            shard.file.close()


def write_token_shards(
    folder: Path | str,
    documents: Iterable[str],
    tokenizer_file: Path | str,
    *,
    source: str,
    license: str,
    revision: str,
    max_tokens_per_shard: int = DEFAULT_SHARD_TOKENS,
) -> TokenShards:
    """Write documents one after another, as `DocumentEncoder` encodes them; return the shards.

    folder: must not exist; it is filled under another name and renamed when complete.
    documents: texts of one license; those without any character are counted and left out.
    tokenizer_file: a tokenizer.json, next to the tokenizer_config.json that names its end token.
    max_tokens_per_shard: a document that would pass it starts the next shard.
    Raises: ValueError if the folder exists, there is no text, or as `DocumentEncoder`.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"token shards are written to a new folder, and {folder} exists")
    encoder, rules = DocumentEncoder(Path(tokenizer_file)), DocumentRules()
    texts = (Document(record, text.encode(), (license,)) for record, text in enumerate(documents))
    with new_folder(folder) as partial:
        encoded = encoder.encode(texts, rules)
        segments = list(write_segments(encoded, partial, max_tokens=max_tokens_per_shard))
        write_manifests(
            partial, segments, source=source, revision=revision, encoder=encoder, rules=rules
        )
    return TokenShards.open(folder)


def write_manifests(
    folder: Path,
    segments: Sequence[Segment],
    *,
    source: str,
    revision: str,
    encoder: DocumentEncoder,
    rules: DocumentRules,
    decontamination: Mapping[str, Any] | None = None,
) -> None:
    """Write manifest.json of `folder`, and of its held-out documents where it has any.

    Raises: ValueError if there is no document to train on.
    """
    tally = DocumentTally.total(segment.tally for segment in segments)
    if not tally.verdicts[Verdict.TRAIN]:
        refused = list(tally.histogram(Verdict.REFUSED))[:5]
        counts = dict(tally.verdicts + tally.problems)
        raise ValueError(f"source {source} has no text to write: {counts}, refused {refused}")
    for split, target in ((Verdict.HELDOUT, folder / HELDOUT_FOLDER), (Verdict.TRAIN, folder)):
        shards = tuple(segment.shards[split] for segment in segments if split in segment.shards)
        if not shards:
            continue
        manifest = Manifest(
            source=source,
            revision=revision,
            split=split.value,
            heldout_fraction=rules.heldout_fraction,
            licenses=tally.histogram(split),
            refused_licenses=tally.histogram(Verdict.REFUSED),
            tokenizer_sha256=encoder.sha256,
            vocab_size=encoder.vocab_size,
            bos_id=encoder.bos_id,
            eos_id=encoder.eos_id,
            num_documents=tally.verdicts[split],
            num_empty_documents=tally.verdicts[Verdict.EMPTY],
            num_invalid_documents=tally.verdicts[Verdict.INVALID],
            invalid_documents=dict(tally.problems),
            num_oversized_documents=tally.verdicts[Verdict.OVERSIZED],
            max_document_bytes=rules.max_document_bytes,
            num_contaminated_documents=tally.verdicts[Verdict.CONTAMINATED],
            decontamination=dict(decontamination or {}),
            num_bytes=tally.num_bytes[split],
            num_tokens=sum(shard.num_tokens for shard in shards),
            shards=shards,
        )
        write_durably(target / MANIFEST_NAME, manifest.to_json())
