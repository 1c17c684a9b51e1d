"""Which documents the sequences of a step were cut from."""

from typing import Any

import numpy as np

from .data_plan import DataPlan
from .spike_guard import Spike


def spike_line(spike: Spike, plan: DataPlan, *, step: int, batch_size: int) -> dict[str, Any]:
    """The line of spikes.jsonl for a step of `batch_size` sequences.

    JSON has no infinity: a loss or limit that is not finite is written as text.
    """
    first = (step - 1) * batch_size
    return {
        "step": step,
        "loss": _json_number(spike.loss),
        "limit": _json_number(spike.limit),
        "action": "skipped" if spike.is_skipped else "logged",
        "sequences": sequence_documents(plan, range(first, first + batch_size)),
    }


def sequence_documents(plan: DataPlan, sequences: range) -> list[dict[str, Any]]:
    """For each sequence its source, epoch, first token, and first and last document.

    Documents are numbered from 0 in the order of the source's shards.
    """
    starts: dict[int, np.ndarray] = {}
    lines = []
    for sequence in sequences:
        window = plan.locate(sequence)
        if window.source not in starts:
            starts[window.source] = plan.shards[window.source].document_starts()
        # The window may run on at token 0, so its last token is taken modulo the source.
        last_token = (window.start + plan.seq_len) % plan.shards[window.source].num_tokens
        ends = np.array([window.start, last_token])
        first, last = np.searchsorted(starts[window.source], ends, side="right") - 1
        lines.append(
            {
                "sequence": sequence,
                "source": plan.config.sources[window.source].name,
                "epoch": window.epoch,
                "start": window.start,
                "documents": [int(first), int(last)],
            }
        )
    return lines


def _json_number(value: float) -> float | str:
    return value if np.isfinite(value) else str(value)
