"""The consumption ledger: which documents a training step reads, from its number alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, groupby
from operator import attrgetter
from typing import Any

import numpy as np

from ..tokens.shards import TokenShards
from .data_plan import DataPlan


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
    """Of its first token within the sequence."""
    source: str
    revision: str
    epoch: int
    span: DocumentSpan


def consumed_documents(
    plan: DataPlan, step: int, *, sequences_per_step: int
) -> Iterator[ConsumedDocument]:
    """What step number `step` reads, in the order of sequences and positions.

    step: from 1, as training logs number it. The spans of a sequence cover seq_len + 1 tokens: its
    inputs and the label of the last.
    Raises: ValueError if `step` is less than 1.
    """
    if step < 1:
        raise ValueError(f"step must be at least 1, got {step}")
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


def sequence_documents(plan: DataPlan, step: int, batch_size: int) -> list[dict[str, Any]]:
    """For each sequence of a step its source, epoch, and first and last document.

    A document is named by its input file and its record there, as `anchored plan --step` does,
    which lists those between too.
    """
    pieces = consumed_documents(plan, step, sequences_per_step=batch_size)
    by_sequence = (list(group) for _, group in groupby(pieces, key=attrgetter("sequence")))
    return [
        {
            "sequence": documents[0].sequence,
            "source": documents[0].source,
            "epoch": documents[0].epoch,
            "first_document": _place(documents[0].span),
            "last_document": _place(documents[-1].span),
        }
        for documents in by_sequence
    ]


def _place(span: DocumentSpan) -> dict[str, Any]:
    return {"input_file": span.input_file, "record": span.record}
