"""Texts to a folder of token shards with its manifests, which appears only when it is complete."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...durable_files import new_folder, write_durably
from .documents import DEFAULT_SHARD_TOKENS, Document, DocumentRules, Verdict
from .encoder import DocumentEncoder
from .manifest import MANIFEST_NAME, DocumentTally, Manifest
from .segments import HELDOUT_FOLDER, Segment, SegmentLayout, write_segments
from .shards import TokenShards


def write_token_shards(
    folder: Path | str,
    documents: Iterable[str],
    tokenizer_file: Path | str,
    *,
    source: str,
    licence: str,
    revision: str,
    max_tokens_per_shard: int = DEFAULT_SHARD_TOKENS,
) -> TokenShards:
    """Write documents as BOS, tokens, EOS, one after another, and return the opened shards.

    folder: must not exist; it is filled under another name and renamed when complete.
    documents: texts of one licence; those without any character are counted and left out.
    tokenizer_file: tokenizer.json with the special tokens <|begin_of_text|> and <|end_of_text|>.
    source, licence, revision: recorded in the manifest.
    max_tokens_per_shard: a document that would pass it starts the next shard; a longer document
        gets a shard of its own.
    Raises: ValueError if the folder exists, the tokenizer lacks BOS or EOS, or there is no text.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"token shards are written to a new folder, and {folder} exists")
    encoder = DocumentEncoder(Path(tokenizer_file))
    rules = DocumentRules()
    with new_folder(folder) as partial:
        layout = SegmentLayout(
            folder=partial, input_file="", prefix="", max_tokens=max_tokens_per_shard
        )
        records = (
            Document(record, text.encode(), (licence,)) for record, text in enumerate(documents)
        )
        segments = list(write_segments(encoder.encode(records, rules), layout))
        write_manifests(
            partial, segments, source=source, revision=revision, encoder=encoder, rules=rules
        )
    return TokenShards.open(folder, verify=False)


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

    decontamination: recorded as it is.
    Raises: ValueError if there is no document to train on.
    """
    tally = DocumentTally.total(segment.tally for segment in segments)
    if not tally.verdicts[Verdict.TRAIN]:
        raise ValueError(f"source {source} has no text to write: {_reasons(tally)}")
    for split, target in ((Verdict.HELDOUT, folder / HELDOUT_FOLDER), (Verdict.TRAIN, folder)):
        shards = tuple(segment.shards[split] for segment in segments if split in segment.shards)
        if not shards:
            continue
        manifest = Manifest(
            source=source,
            revision=revision,
            split=split.value,
            heldout_fraction=rules.heldout_fraction,
            licences=tally.histogram(split),
            refused_licences=tally.histogram(Verdict.REFUSED),
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


def _reasons(tally: DocumentTally) -> str:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in sorted(tally.verdicts.items()))
    problems = f"; invalid: {', '.join(tally.problems)}" if tally.problems else ""
    refused = tally.histogram(Verdict.REFUSED)
    licences = f"; refused licences: {', '.join(list(refused)[:5])}" if refused else ""
    return (counts or "no document at all") + problems + licences
