"""Whether a document was read, and in which steps: the data plan's closed forms, inverted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..tokens.manifest import Shard
from ..tokens.shards import TokenShards
from .data_plan import DataPlan, step_reading


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamDocument:
    """A document's place in the stream of its source."""

    source: str
    input_file: str
    record: int
    licence: str
    start: int
    """Its BOS, in the stream."""
    num_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """A part of a document that one sequence of one step reads."""

    step: int
    sequence: int
    """Number in the whole data plan, from 0."""
    position: int
    """Of the first token within the sequence."""
    epoch: int
    first_token: int
    """Within the document, its BOS being token 0."""
    num_tokens: int
    """A sequence has seq_len + 1: its inputs and the label of the last."""


def find_document(
    source: str, shards: TokenShards, input_file: str, record: int
) -> StreamDocument | None:
    """A document by its place in the input of a source; None if the shards do not hold it."""
    base = 0
    for shard in shards.manifest.shards:
        if shard.input_file == input_file:
            records = shards.provenance(shard)[:, 0]
            number = int(np.searchsorted(records, record))
            if number < len(records) and records[number] == record:
                return document_of_shard(source, shards, shard, number, base)
        base += shard.num_tokens
    return None


def document_of_shard(
    source: str, shards: TokenShards, shard: Shard, number: int, base: int
) -> StreamDocument:
    """The document `number` of a shard whose first token is at `base` of the stream."""
    offsets = shards.document_offsets(shard)
    record, licence = shards.provenance(shard)[number].tolist()
    return StreamDocument(
        source=source,
        input_file=shard.input_file,
        record=record,
        licence=shard.licences[licence],
        start=base + int(offsets[number]),
        num_tokens=int(offsets[number + 1] - offsets[number]),
    )


def readings(
    plan: DataPlan, document: StreamDocument, data: dict[str, Any], *, num_steps: int
) -> list[Reading]:
    """Every part of a document that the first `num_steps` steps of a run read, in their order.

    data: the run's `data_record`, with what it skipped, and its batch size.
    """
    batch_size = data["batch_size"]
    source = [one.name for one in plan.config.sources].index(document.source)
    num_skipped = sum(number for _, number in data.get("skips", []))
    stop = document.start + document.num_tokens
    found = []
    for sequence, window in plan.sequences_with(
        source, document.start, stop, num_sequences=(num_steps + num_skipped) * batch_size
    ):
        step = step_reading(data, sequence // batch_size + 1)
        if step is None or step > num_steps:
            continue
        for first, num_tokens in _overlaps(plan, window.start, document, source):
            found.append(
                Reading(
                    step=step,
                    sequence=sequence,
                    position=first - window.start,
                    epoch=window.epoch,
                    first_token=(first - document.start) % plan.shards[source].num_tokens,
                    num_tokens=num_tokens,
                )
            )
    return sorted(found, key=lambda reading: (reading.sequence, reading.position))


def _overlaps(
    plan: DataPlan, start: int, document: StreamDocument, source: int
) -> Iterator[tuple[int, int]]:
    """(first token, how many) of a document in a window, which may run on behind the last token."""
    for shift in (0, plan.shards[source].num_tokens):
        first = max(start, document.start + shift)
        stop = min(start + plan.seq_len + 1, document.start + shift + document.num_tokens)
        if first < stop:
            yield first, stop - first
