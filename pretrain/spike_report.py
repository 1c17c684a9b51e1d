"""Which documents the sequences of a step were cut from."""

import math
from itertools import groupby
from operator import attrgetter
from typing import Any

from .consumption import DocumentSpan, consumed_documents
from .data_plan import DataPlan
from .spike_guard import Spike


def spike_line(spike: Spike, plan: DataPlan, *, step: int, batch_size: int) -> dict[str, Any]:
    """The line of spikes.jsonl for a step of `batch_size` sequences.

    JSON has no infinity: a loss or limit that is not finite is written as text.
    """
    return {
        "step": step,
        "loss": _json_number(spike.loss),
        "limit": _json_number(spike.limit),
        "action": "skipped" if spike.is_skipped else "logged",
        "sequences": sequence_documents(plan, step, batch_size),
    }


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


def _json_number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)
