"""Weight of the safe model: of each piece of the vocabulary, and where the risky one allows it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .logit_pair import LogitPair
from .row_group import PieceWeights, Read, RowGroup, piece_weights

# A rows asked for, R rows and C columns of one read.


@dataclass(frozen=True, slots=True)
class SupportMasses:
    """Safe weight of the rows asked for, the heaviest token of each row weighing 1."""

    pieces: Tensor
    """(A, num_pieces) float64, all tokens of each piece of the vocabulary."""
    shared: Tensor
    """(A,) float64, the tokens both models allow."""
    banned: Tensor
    """(A,) float64, the others; exactly 0 where there are none."""


class _Slots(NamedTuple):
    weights: PieceWeights
    shared: PieceWeights
    tilt: Tensor
    """(R, C)."""


def _cut(memory: Tensor, width: int) -> _Slots:
    weights, shared, tilt = memory.unbind(1)
    return _Slots(piece_weights(weights, width), piece_weights(shared, width), tilt[:, :width])


class SupportPass:
    """Reads safe logits, and risky ones where tokens are banned."""

    def __init__(self, pair: LogitPair, num_rows: int) -> None:
        shape = (3, num_rows, pair.num_pieces)
        self._pair = pair
        self._sums = torch.zeros(shape, dtype=torch.float64, device=pair.safe.device)
        self._scratch = pair.scratch(num_rows, 3, _cut)
        self._parts: list[list[Tensor]] = []

    def add(self, group: RowGroup, read: Read) -> None:
        weights, shared, tilt = self._scratch.slots(group, read)
        group.weights_(group.read_safe(read, weights.values))
        sums = [weights.sums()]
        if self._pair.has_bans and not group.is_plain:
            self._pair.read_shared(group, read, shared.values, tilt)
            group.weights_(shared.values)
            weights.values.sub_(shared.values)
            sums += [shared.sums(), weights.sums()]
        self._parts.append(sums)

    def end(self, places: slice, group: RowGroup) -> None:
        """All blocks of the rows at these places have been read."""
        for total, parts in zip(self._sums, zip(*self._parts, strict=True), strict=False):
            total[places] = torch.cat(parts, 1)
        if self._pair.has_bans and group.is_plain:
            self._sums[1, places] = self._sums[0, places]
        self._parts.clear()

    def masses(self) -> SupportMasses:
        pieces, shared, banned = self._sums
        total = (shared if self._pair.has_bans else pieces).sum(-1)
        return SupportMasses(pieces, total, banned.sum(-1))


def support_masses(pair: LogitPair, rows: Tensor) -> SupportMasses:
    """The masses of some rows, (A,) int64."""
    support = SupportPass(pair, len(rows))
    for places, group in pair.row_groups(rows):
        for read in group.reads:
            support.add(group, read)
        support.end(places, group)
    return support.masses()
