"""Which documents a training step reads, and which steps read a document, in closed form."""

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
    licence: str
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
    shards = plan.shards[window.source]
    before_end = min(plan.seq_len + 1, shards.num_tokens - window.start)
    position = 0
    for span in chain(
        document_spans(shards, window.start, before_end),
        document_spans(shards, 0, plan.seq_len + 1 - before_end),
    ):
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
    """The documents behind tokens start .. start + count - 1 of the stream, in order."""
    for shard, offset, length in shards.pieces(start, count):
        offsets, provenance = shards.document_offsets(shard), shards.provenance(shard)
        document = int(np.searchsorted(offsets, offset, side="right")) - 1
        end = offset + length
        while offset < end:
            stop = min(int(offsets[document + 1]), end)
            record, licence = provenance[document].tolist()
            yield DocumentSpan(
                shard=shard.tokens_file,
                input_file=shard.input_file,
                record=record,
                licence=shard.licences[licence],
                first_token=offset - int(offsets[document]),
                num_tokens=stop - offset,
            )
            offset, document = stop, document + 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamDocument:
    """A document in the stream of its source."""

    source: str
    input_file: str
    record: int
    licence: str
    start: int
    """Its BOS, in the stream."""
    num_tokens: int


def find_document(
    source: str, shards: TokenShards, input_file: str, record: int
) -> StreamDocument | None:
    """Find a document by its record in the input of a source; None if the shards do not hold it."""
    base = 0
    for shard in shards.manifest.shards:
        if shard.input_file == input_file:
            records = shards.provenance(shard)[:, 0]
            number = int(np.searchsorted(records, record))
            if number < len(records) and records[number] == record:
                offsets = shards.document_offsets(shard)
                return StreamDocument(
                    source=source,
                    input_file=input_file,
                    record=record,
                    licence=shard.licences[int(shards.provenance(shard)[number, 1])],
                    start=base + int(offsets[number]),
                    num_tokens=int(offsets[number + 1] - offsets[number]),
                )
        base += shard.num_tokens
    return None


def parts_read(
    plan: DataPlan, document: StreamDocument, data: dict[str, Any], *, num_steps: int
) -> list[tuple[int, ConsumedDocument]]:
    """Every part of a document that the first `num_steps` steps of a run read, each with its step.

    data: the run's `data_record`, with what it skipped, and its batch size.
    """
    batch_size = data["batch_size"]
    source = [one.name for one in plan.config.sources].index(document.source)
    num_skipped = sum(number for _, number in data.get("skips", []))
    stop = document.start + document.num_tokens
    sequences = plan.sequences_with(
        source, document.start, stop, num_sequences=(num_steps + num_skipped) * batch_size
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
