"""Which documents a training step reads, and which steps read a document, in closed form."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from ..tokens.shards import TokenShards
from .data_plan import DataPlan, step_reading


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSpan:
    """The part of one document that a sequence holds."""

    shard: str
    input_file: str
    record: int
    """Line or row in the input file, from 0."""
    licence: str
    first_token: int
    """Within the document, its BOS being token 0."""
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumedDocument:
    """A part of a document, and where in the training it is read."""

    sequence: int
    """Number in the whole run, from 0."""
    position: int
    """Index of its first token within the sequence."""
    source: str
    revision: str
    epoch: int
    span: DocumentSpan


def consumed_documents(
    plan: DataPlan, step: int, *, sequences_per_step: int
) -> Iterator[ConsumedDocument]:
    """List what step number `step` reads, in the order of sequences and positions.

    step: from 1, as training logs number it. The spans of a sequence cover seq_len + 1 tokens: its
    inputs and the label of the last.
    """
    for sequence in range((step - 1) * sequences_per_step, step * sequences_per_step):
        window = plan.locate(sequence)
        shards = plan.shards[window.source]
        before_end = min(plan.seq_len + 1, shards.num_tokens - window.start)
        position = 0
        for span in chain(
            document_spans(shards, window.start, before_end),
            document_spans(shards, 0, plan.seq_len + 1 - before_end),
        ):
            yield ConsumedDocument(
                sequence=sequence,
                position=position,
                source=plan.config.sources[window.source].name,
                revision=shards.manifest.revision,
                epoch=window.epoch,
                span=span,
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
    licence: str
    start: int
    """Its BOS, in the stream."""
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PartRead:
    """A part of a document that one sequence of one step reads."""

    step: int
    sequence: int
    """Number in the whole data plan, from 0."""
    position: int
    """Index of the first token within the sequence."""
    epoch: int
    first_token: int
    """Within the document, its BOS being token 0."""
    num_tokens: int
    """A sequence has seq_len + 1: its inputs and the label of the last."""


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
                    licence=shard.licences[int(shards.provenance(shard)[number, 1])],
                    start=base + int(offsets[number]),
                    num_tokens=int(offsets[number + 1] - offsets[number]),
                )
        base += shard.num_tokens
    return None


def parts_read(
    plan: DataPlan, document: StreamDocument, data: dict[str, Any], *, num_steps: int
) -> list[PartRead]:
    """Every part of a document that the first `num_steps` steps of a run read, in their order.

    data: the run's `data_record`, with what it skipped, and its batch size.
    """
    batch_size = data["batch_size"]
    source = [one.name for one in plan.config.sources].index(document.source)
    num_skipped = sum(number for _, number in data.get("skips", []))
    stop = document.start + document.num_tokens
    parts = []
    for sequence, window in plan.sequences_with(
        source, document.start, stop, num_sequences=(num_steps + num_skipped) * batch_size
    ):
        step = step_reading(data, sequence // batch_size + 1)
        if step is None or step > num_steps:
            continue
        for first, num_tokens in _overlaps(plan, window.start, document, source):
            parts.append(
                PartRead(
                    step=step,
                    sequence=sequence,
                    position=first - window.start,
                    epoch=window.epoch,
                    first_token=(first - document.start) % plan.shards[source].num_tokens,
                    num_tokens=num_tokens,
                )
            )
    return sorted(parts, key=lambda part: (part.sequence, part.position))


def _overlaps(
    plan: DataPlan, start: int, document: StreamDocument, source: int
) -> Iterator[tuple[int, int]]:
    """(first token, how many) of a document in a window, which may run on behind the last token."""
    for shift in (0, plan.shards[source].num_tokens):
        first = max(start, document.start + shift)
        stop = min(start + plan.seq_len + 1, document.start + shift + document.num_tokens)
        if first < stop:
            yield first, stop - first
