"""`sampler.coupled_sample` for a law kept as two rows of logits, without its log-probabilities."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from .law import LogRatio, RatioLaw, TokenBits, token_bits
from .row_group import PIECE_SIZE, PieceWeights, RowGroup, piece_weights

# A rows drawn for, B requests, R rows and C columns of one read.

BLOCK_SIZE = 64
"""Columns that a draw adds up before it looks at each of them; every read holds a multiple."""

Weights = Callable[[RowGroup], Iterator[PieceWeights]]
"""Weights of some rows read by read, at least 0, float64."""

Masses = Mapping[int, Sequence[float]] | Sequence[Sequence[float]]
"""Of a row of the batch: the weight in each piece of the vocabulary."""


def sample_law(law: RatioLaw, is_valid: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """A coupled draw of each row.

    is_valid: (B,) bool. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, -1 where not valid, and accepted (B,) bool.
    """
    device, num_rows = is_valid.device, len(is_valid)
    rows = [row for row, is_so in enumerate(is_valid.tolist()) if is_so]
    first, second, third = uniform.T.tolist()
    reader = _LawReader(law, len(rows))
    drawn = reader.draw(rows, law.safe_pieces.tolist(), first, reader.safe_weights)
    drafts = torch.tensor([drawn.get(row, 0) for row in range(num_rows)], device=device)
    bits = token_bits(law, drafts)
    rejected = [row for row in rows if not _accepts(bits[row].ratio, second[row])]
    replaced = _replacements(reader, rejected, bits, third)
    drawn |= replaced
    is_draft = [row in drawn and row not in replaced for row in range(num_rows)]
    token_ids = torch.tensor([drawn.get(row, -1) for row in range(num_rows)], device=device)
    return token_ids, torch.tensor(is_draft, device=device)


def _accepts(log2_ratio: float, uniform: float) -> bool:
    return log2_ratio >= 0.0 or uniform < 2.0**log2_ratio


def _replacements(
    reader: _LawReader, rows: list[int], drafts: Sequence[TokenBits], uniform: Sequence[float]
) -> dict[int, int]:
    """What takes the place of the drafts of these rows, but for those that stand after all.

    rows: A of them. drafts, uniform: B of them.
    """
    masses = reader.masses(rows, reader.residual_weights)
    has_residual = [row for row in rows if any(masses[row])]
    drawn = reader.draw(has_residual, masses, uniform, reader.residual_weights)
    # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
    stranded = [row for row in rows if row not in drawn and drafts[row].ratio == -math.inf]
    masses = reader.masses(stranded, reader.shared_weights)
    return drawn | reader.draw(stranded, masses, uniform, reader.shared_weights)


class _LawReader:
    """Reads the weights of a law, and draws by them."""

    def __init__(self, law: RatioLaw, num_rows: int) -> None:
        self._law, self._pair = law, law.pair
        self._scratch = law.pair.scratch(num_rows, 2, _weights_and_tilt)
        self._ratios: dict[float, LogRatio] = {}

    def safe_weights(self, group: RowGroup) -> Iterator[PieceWeights]:
        for read in group.reads:
            weights, _ = self._scratch.slots(group, read)
            group.weights_(group.read_safe(read, weights.values))
            yield weights

    def shared_weights(self, group: RowGroup) -> Iterator[PieceWeights]:
        for read in group.reads:
            weights, tilt = self._scratch.slots(group, read)
            self._pair.read_shared(group, read, weights.values, tilt)
            group.weights_(weights.values)
            yield weights

    def residual_weights(self, group: RowGroup) -> Iterator[PieceWeights]:
        """(p* - p_s)_+ up to a factor; its rounding error is that of p_s itself."""
        if group.unit not in self._ratios:
            self._ratios[group.unit] = self._law.log_ratio(group.unit)
        ratio = self._ratios[group.unit].take(group.rows)
        for read in group.reads:
            weights, tilt = self._scratch.slots(group, read)
            safe = weights.values
            self._pair.read_shared(group, read, safe, tilt)
            prob = group.weights_(ratio.added_(safe, tilt))
            torch.sub(prob, group.weights_(safe), out=safe).clamp_min_(0.0)
            if read.is_padded:
                safe[:, read.num_columns :] = 0.0
            yield weights

    def masses(self, rows: Sequence[int], weights: Weights) -> dict[int, list[float]]:
        """Of each row: the weight in each piece of the vocabulary."""
        masses: list[list[float]] = []
        for _, group in self._pair.row_groups(self._on_device(rows)):
            masses += torch.cat([read.sums() for read in weights(group)], 1).tolist()
        return dict(zip(rows, masses, strict=True))

    def draw(
        self, rows: Sequence[int], masses: Masses, uniform: Sequence[float], weights: Weights
    ) -> dict[int, int]:
        """A token of each row by the inverse CDF: the piece by its mass, then the token inside.

        masses: with at least one above 0 in each row. uniform: B of them.
        """
        found = [_first_above(masses[row], uniform[row] * math.fsum(masses[row])) for row in rows]
        token_ids: list[int] = []
        pieces = [piece for piece, _ in found]
        for places, group in self._pair.piece_groups(self._on_device(rows), pieces):
            (read,) = weights(group)
            inside = _first_tokens_above(read.values, [target for _, target in found[places]])
            token_ids += [PIECE_SIZE * x + y for x, y in zip(pieces[places], inside, strict=True)]
        return dict(zip(rows, token_ids, strict=True))

    def _on_device(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.int64, device=self._pair.safe.device)


def _first_tokens_above(weights: Tensor, targets: Sequence[float]) -> list[int]:
    """weights: (R, C). targets: R of them."""
    blocks = weights.view(len(weights), -1, BLOCK_SIZE)
    sums, host = blocks.sum(-1).tolist(), blocks.cpu().numpy()
    token_ids = []
    for row, target in enumerate(targets):
        block, rest = _first_above(sums[row], target)
        inside, _ = _first_above(host[row, block].tolist(), rest)
        token_ids.append(BLOCK_SIZE * block + inside)
    return token_ids


def _first_above(weights: Sequence[float], target: float) -> tuple[int, float]:
    """The first index at which the running sum exceeds the target, and what the target exceeds
    the sum before it by; its weight is positive, if one is."""
    sums = list(accumulate(weights))
    # Below the last sum: such an index exists, whatever the rounding of the sums.
    index = bisect_right(sums, min(target, math.nextafter(sums[-1], 0.0)))
    return index, target - (sums[index - 1] if index else 0.0)


def _weights_and_tilt(memory: Tensor, width: int) -> tuple[PieceWeights, Tensor]:
    weights, tilt = memory.unbind(1)
    return piece_weights(weights, width), tilt[:, :width]
