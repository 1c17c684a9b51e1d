"""The documents that a training step reads, and the steps that read a document, in closed form."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..tokens.shards import TokenShards
from .data_plan import DataPlan, step_reading


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSpan:
    """A part of one document."""

    shard: str
    input_file: str
    record: int
    """Line or row in the input file, from 0."""
    license: str
    first_token: int
    """Within the document, its BOS being token 0."""
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumedDocument(DocumentSpan):
    """A part of a document, and where in the training it is read."""

    source: str
    revision: str
    sequence: int
    """Number in the whole data plan, from 0."""
    position: int
    """Index of its first token within the sequence."""
    epoch: int


def sequence_documents(plan: DataPlan, sequence: int) -> Iterator[ConsumedDocument]:
    """The parts of documents that a sequence reads, in the order of their positions.

    They cover seq_len + 1 tokens: the sequence's inputs and the label of the last.
    """
    window = plan.locate(sequence)
    shards, position = plan.shards[window.source], 0
    pieces = (document_spans(shards, *piece) for piece in plan.pieces(window))
    for span in chain.from_iterable(pieces):
        yield ConsumedDocument(
            **asdict(span),
            source=plan.config.sources[window.source].name,
            revision=shards.manifest.revision,
            sequence=sequence,
            position=position,
            epoch=window.epoch,
        )
        position += span.num_tokens


def document_spans(shards: TokenShards, start: int, count: int) -> Iterator[DocumentSpan]:
    """The documents that hold tokens start .. start + count - 1 of the stream, in order."""
    for shard, offset, length in shards.pieces(start, count):
        offsets, provenance = shards.document_offsets(shard), shards.provenance(shard)
        document = int(np.searchsorted(offsets, offset, side="right")) - 1
        end = offset + length
        while offset < end:
            stop = min(int(offsets[document + 1]), end)
            record, license = provenance[document].tolist()
            yield DocumentSpan(
                shard=shard.tokens_file,
                input_file=shard.input_file,
                record=record,
                license=shard.licenses[license],
                first_token=offset - int(offsets[document]),
                num_tokens=stop - offset,
            )
            offset, document = stop, document + 1


def find_document(
    shards: TokenShards, input_file: str, record: int
) -> tuple[int, DocumentSpan] | None:
    """A whole document by its record in the input of a source, after its first token in the stream.

    None if the shards do not hold it.
    """
    base = 0
    for shard in shards.manifest.shards:
        if shard.input_file == input_file:
            records = shards.provenance(shard)[:, 0]
            number = int(np.searchsorted(records, record))
            if number < len(records) and records[number] == record:
                start, stop = shards.document_offsets(shard)[number : number + 2].tolist()
                return base + start, next(document_spans(shards, base + start, stop - start))
        base += shard.num_tokens
    return None


def parts_read(
    plan: DataPlan,
    source: int,
    start: int,
    document: DocumentSpan,
    data: dict[str, Any],
    *,
    num_steps: int,
) -> list[tuple[int, ConsumedDocument]]:
    """Every part of a document that the first `num_steps` steps of a run read, each with its step.

    start, document: as `find_document` gives them for the shards of the plan's source `source`.
    data: the run's `data_record`, with what it skipped, and its batch size.
    """
    batch_size = data["batch_size"]
    num_skipped = sum(number for _, number in data.get("skips", []))
    sequences = plan.sequences_with(
        source,
        start,
        start + document.num_tokens,
        num_sequences=(num_steps + num_skipped) * batch_size,
    )
    parts = []
    for sequence in sorted(sequences):
        step = step_reading(data, sequence // batch_size + 1)
        if step is not None and step <= num_steps:
            parts += [
                (step, one)
                for one in sequence_documents(plan, sequence)
                if (one.input_file, one.record) == (document.input_file, document.record)
            ]
    return parts
