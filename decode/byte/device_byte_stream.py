"""A stream of byte distributions that never waits for the device which computes them."""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..upload import uploaded
from .byte_evaluation import ByteCounts, ByteEvaluation
from .byte_row import ByteRow
from .byte_stream import ByteStream
from .byte_vocabulary import NUM_SYMBOLS
from .device_laws import DeviceLaw, DeviceLaws
from .device_marginals import HeadTable, log_probs_on_device
from .node_law import NodeLaw
from .viability import Standing

# R rows of one call.


def device_stream_refusal(evaluation: ByteEvaluation) -> str:
    """Why laws cannot stay on the device, "" if they can: the host must not choose by them."""
    if evaluation.tau:
        return f"tau={evaluation.tau} leaves nodes out by their mass"
    if evaluation.prefetch:
        return f"prefetch={evaluation.prefetch} takes the likeliest continuations"
    return ""


class DeviceByteStream(ByteStream):
    """A `ByteStream` whose laws, masses and marginals stay where the model is.

    The host grows the trees, which depend on the texts alone, and sends masks and intervals; the
    law of a next byte needs nothing back. So one transfer a byte is enough: that of the byte drawn.
    The log-probabilities of prompts are computed as in `ByteStream`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """As a `ByteStream`; ValueError for an evaluation by masses: `device_stream_refusal`."""
        super().__init__(*arguments, **settings)
        if refusal := device_stream_refusal(self.evaluation):
            raise ValueError(f"laws cannot stay on the device: {refusal}")
        self._laws = DeviceLaws(self.vocabulary, self._device, self.evaluation.mode)

    def counts(self, row: int) -> ByteCounts:
        """The work that a row has made so far; waits for the device."""
        own = super().counts(row)
        return replace(own, masked_mass=float(own.masked_mass))

    def _seen(self, paths: list[NDArray[np.int64]]) -> Tensor:
        seen = torch.zeros(len(paths), self.vocabulary.vocab_size, dtype=torch.bool)
        for row, path in zip(seen, paths, strict=True):
            row[torch.from_numpy(path)] = True
        return uploaded(seen, self._device)

    def _new_laws(self, standings: list[Standing], logits: Tensor) -> list[NodeLaw]:
        # Rows ask a law for of_token and masked_mass alone, and only ever add what these return.
        return cast(list[NodeLaw], self._laws(standings, logits))

    def _marginals(self, rows: list[ByteRow]) -> Tensor:
        heads = [[] if row.is_over else row.tree.heads for row in rows]
        if not any(heads):
            return self._filled(-torch.inf, len(rows), NUM_SYMBOLS)
        owners = [(row, head.node) for row, own in zip(rows, heads, strict=True) for head in own]
        log_probs, masses = log_probs_on_device(
            HeadTable(heads, self.vocabulary.trie),
            [cast(DeviceLaw, row.marginals.laws[node]) for row, node in owners],
            [self._mass(row.marginals.log_mass[node]) for row, node in owners],
        )
        for (row, node), mass in zip(owners, masses, strict=True):
            row.marginals.log_mass[node] = cast(float, mass)
        return log_probs

    def _mass(self, value: float | Tensor) -> Tensor:
        return value if isinstance(value, Tensor) else self._filled(value)

    def _filled(self, value: float, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=torch.float64, device=self._device)
