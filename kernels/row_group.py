"""Some rows of a pair of logits, read block by block as log-weights."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

# B requests, V vocabulary, R rows of one read, C columns of one read.

BITS_PER_NAT = 1.0 / math.log(2.0)

PLAIN_PADDING = -700.0
"""Its weight changes no sum of the weights of plain logits, and `exp` takes no longer for it; for
-inf it takes 22 ns."""

PIECE_SIZE = 4096
"""Columns whose weight is kept, so that a draw has to look at no more than one piece again."""


class Read(NamedTuple):
    """One block: some rows of the batch, some columns of the vocabulary."""

    start: int
    """Its first column."""
    risky: Tensor
    """(R, number of columns), logits."""
    safe: Tensor
    """(R, number of columns), logits."""

    @property
    def pieces(self) -> slice:
        """Numbers of the pieces it covers."""
        first, num_columns = self.start // PIECE_SIZE, self.safe.shape[1]
        return slice(first, first - (-num_columns // PIECE_SIZE))

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.safe.shape[1])


class RowGroup(NamedTuple):
    """Some rows, read together block by block; what all their blocks share is made once."""

    rows: Tensor | slice
    """(R,) int64, rows of the batch, or a slice of one row, which costs no copy."""
    is_plain: bool
    """Log-weights are in nats, in float64 the logits themselves; otherwise they are in bits."""
    places: slice
    """Their places in the list of rows asked for."""
    risky_shift: Tensor | None
    """(R, 1), of the dtype of the scratch, in the group's unit; None for 0."""
    safe_shift: Tensor | None
    block: Tensor
    """(R, num_slots, C) of the scratch of the pass; C is the padded number of columns."""
    slots: tuple[Tensor, ...]
    """The same, (R, C) each."""
    reads: list[Read]

    @property
    def unit(self) -> float:
        """Bits by which log-weights of this group are counted."""
        return BITS_PER_NAT if self.is_plain else 1.0

    def weights_(self, log_weights: Tensor) -> Tensor:
        """Log-weights of this group overwritten by the weights."""
        return log_weights.exp_() if self.is_plain else log_weights.exp2_()


def piece_sums(values: Tensor, pieces: slice) -> Tensor:
    """Sums over each piece of a read: (R, C) to (R, number of pieces)."""
    sums = values.view(len(values), -1, min(values.shape[1], PIECE_SIZE)).sum(-1)
    return sums[:, : pieces.stop - pieces.start]


def read_logs(group: RowGroup, logits: Tensor, shift: Tensor | None, out: Tensor) -> Tensor:
    """Log-weights of some logits of a group, in its unit; -inf or PLAIN_PADDING in the padding.

    shift: that of the group. out: (R, C), at least as wide as the logits; overwritten and returned.
    """
    inside, num_columns = out, logits.shape[1]
    if out.shape[1] > num_columns:
        inside = out[:, :num_columns]
        out[:, num_columns:] = PLAIN_PADDING if group.is_plain else -math.inf
    if shift is None or out.dtype != logits.dtype:
        # An addition of two dtypes would make a temporary of its own.
        logits = inside.copy_(logits)
    if shift is not None:
        torch.add(shift, logits, alpha=BITS_PER_NAT / group.unit, out=inside)
    return out
