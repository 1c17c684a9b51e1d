"""The manifests of a folder of token shards, put together from its segments."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .document import DocumentRules, Verdict
from .document_encoder import DocumentEncoder
from .document_tally import DocumentTally
from .shard_files import write_durably
from .shard_segments import HELDOUT_FOLDER, Segment
from .shards import MANIFEST_NAME, Manifest, Shard


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a manifest says of where its documents came from."""

    source: str
    revision: str


def write_manifests(
    folder: Path,
    segments: Sequence[Segment],
    *,
    origin: Origin,
    encoder: DocumentEncoder,
    rules: DocumentRules,
) -> None:
    """Write manifest.json of `folder`, and of its held-out documents where it has any.

    Raises: ValueError if there is no document to train on.
    """
    tally = DocumentTally.total(segment.tally for segment in segments)
    if not tally.verdicts[Verdict.TRAIN.value]:
        raise ValueError(f"source {origin.source} has no text to write: {_reasons(tally)}")
    for split, target in ((Verdict.HELDOUT, folder / HELDOUT_FOLDER), (Verdict.TRAIN, folder)):
        if shards := _shards(segments, split):
            manifest = _manifest(shards, tally, split, origin=origin, encoder=encoder, rules=rules)
            write_durably(target / MANIFEST_NAME, manifest.to_json())


def _manifest(
    shards: tuple[Shard, ...],
    tally: DocumentTally,
    split: Verdict,
    *,
    origin: Origin,
    encoder: DocumentEncoder,
    rules: DocumentRules,
) -> Manifest:
    return Manifest(
        source=origin.source,
        revision=origin.revision,
        split=split.value,
        heldout_fraction=rules.heldout_fraction,
        licences=tally.histogram(split),
        refused_licences=tally.histogram(Verdict.REFUSED),
        tokenizer_sha256=encoder.sha256,
        vocab_size=encoder.vocab_size,
        bos_id=encoder.bos_id,
        eos_id=encoder.eos_id,
        num_documents=tally.verdicts[split.value],
        num_empty_documents=tally.verdicts[Verdict.EMPTY.value],
        num_invalid_documents=tally.verdicts[Verdict.INVALID.value],
        invalid_documents=dict(tally.problems),
        num_oversized_documents=tally.verdicts[Verdict.OVERSIZED.value],
        max_document_bytes=rules.max_document_bytes,
        num_bytes=tally.num_bytes[split.value],
        num_tokens=sum(shard.num_tokens for shard in shards),
        shards=shards,
    )


def _shards(segments: Iterable[Segment], split: Verdict) -> tuple[Shard, ...]:
    return tuple(
        segment.shards[split.value] for segment in segments if split.value in segment.shards
    )


def _reasons(tally: DocumentTally) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.verdicts.items()))
    problems = f"; invalid: {', '.join(tally.problems)}" if tally.problems else ""
    refused = tally.histogram(Verdict.REFUSED)
    licences = f"; refused licences: {', '.join(list(refused)[:5])}" if refused else ""
    return (counts or "no document at all") + problems + licences
