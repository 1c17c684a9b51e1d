"""Some rows of a pair of logits, read block by block as log-weights."""

import math
from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from .spend import BAN_GAP

# B requests, V vocabulary, R rows of one read, C columns of one read, W columns of a scratch.

BITS_PER_NAT = 1.0 / math.log(2.0)

BAN_BITS = -BAN_GAP * BITS_PER_NAT
"""Log-weights below it are those of banned tokens."""

PLAIN_PADDING = -700.0
"""Its weight changes no sum of the weights of plain logits, and `exp` takes no longer for it; for
-inf it takes 22 ns."""

PIECE_SIZE = 4096
"""Columns whose weight is kept, so that a draw has to look at no more than one piece again."""

Slots = TypeVar("Slots")


class Read(NamedTuple):
    """One block: some rows of the batch, some columns of the vocabulary."""

    columns: slice
    num_columns: int
    width: int
    """C, the number of columns padded: what is computed on."""
    risky: Tensor
    """(R, num_columns), logits."""
    safe: Tensor
    """(R, num_columns), logits."""

    @property
    def is_padded(self) -> bool:
        return self.num_columns < self.width


class RowGroup(NamedTuple):
    """Some rows, read together block by block; what all their blocks share is made once."""

    rows: Tensor | slice
    """(R,) int64, rows of the batch, or a slice of one row, which costs no copy."""
    num_rows: int
    """R."""
    is_plain: bool
    """Log-weights are in nats, in float64 the logits themselves; otherwise they are in bits."""
    risky_peak: Tensor
    """(R, 1) float64, the largest logit; of a plain row float32, for reads in float32 alone."""
    safe_peak: Tensor
    reads: list[Read]

    @property
    def unit(self) -> float:
        """Bits by which log-weights of this group are counted."""
        return BITS_PER_NAT if self.is_plain else 1.0

    def weights_(self, log_weights: Tensor) -> Tensor:
        """Log-weights of this group overwritten by the weights."""
        return log_weights.exp_() if self.is_plain else log_weights.exp2_()

    def read_safe(self, read: Read, out: Tensor) -> Tensor:
        """Safe log-weights in the unit of the group; -inf or PLAIN_PADDING in the padding.

        out: (R, C), overwritten and returned.
        """
        return self._read(read, read.safe, self.safe_peak, out)

    def read_risky(self, read: Read, out: Tensor) -> Tensor:
        """The same of the risky model."""
        return self._read(read, read.risky, self.risky_peak, out)

    def _read(self, read: Read, logits: Tensor, peak: Tensor, out: Tensor) -> Tensor:
        inside = out
        if read.is_padded:
            inside = out[:, : read.num_columns]
            out[:, read.num_columns :] = PLAIN_PADDING if self.is_plain else -math.inf
        if self.is_plain and out.dtype == torch.float64:
            inside.copy_(logits)
            return out
        if out.dtype != logits.dtype:
            # A difference of two dtypes would make a temporary of its own.
            logits = inside.copy_(logits)
        # The peak first: what is left is exact to its own last digit, however large both are.
        torch.sub(logits, peak.to(out.dtype), out=inside)
        if not self.is_plain:
            inside.mul_(BITS_PER_NAT)
        return out


class Scratch(Generic[Slots]):
    """Memory of one pass, cut into what its reads compute on; each shape is cut once.

    It is made once for all reads: malloc returns buffers above its threshold to the kernel, and
    every page of the next one faults (measured: twice the time of a pass).
    """

    def __init__(self, memory: Tensor, cut: Callable[[Tensor, int], Slots]) -> None:
        """memory: (rows of a read, num_slots, W). cut: (R, num_slots, W), C -> slots of a read."""
        self._memory, self._cut = memory, cut
        self._slots: dict[tuple[int, int], Slots] = {}

    def slots(self, group: RowGroup, read: Read) -> Slots:
        shape = group.num_rows, read.width
        if shape not in self._slots:
            self._slots[shape] = self._cut(self._memory[: group.num_rows], read.width)
        return self._slots[shape]


class PieceWeights(NamedTuple):
    """Weights of one read, and the pieces of the vocabulary that they make up."""

    values: Tensor
    """(R, C)."""
    pieces: Tensor
    """(R, num_pieces, columns of a piece), over the same memory."""
    rest: Tensor | None
    """What the last piece has beyond C."""

    def sums(self) -> Tensor:
        """(R, num_pieces), the weight of each piece."""
        if self.rest is not None:
            self.rest.zero_()
        return self.pieces.sum(-1)


def piece_weights(slot: Tensor, width: int) -> PieceWeights:
    """slot: (R, W), of which a read computes on the first `width` columns."""
    size = min(PIECE_SIZE, slot.shape[1])
    end = -(-width // size) * size
    pieces = slot[:, :end].view(len(slot), -1, size)
    return PieceWeights(slot[:, :width], pieces, slot[:, width:end] if end > width else None)
