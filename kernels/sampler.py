"""The coupled sampler coupled/1: the safe model's draw where it may stand, else the residual."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .law import LogRatio, RatioLaw, token_log2_probs
from .row_group import PIECE_SIZE, PieceWeights, RowGroup, piece_weights

# A rows drawn for, B requests, V vocabulary, R rows and C columns of one read.

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

Weights = Callable[[RowGroup], Iterator[PieceWeights]]
"""Weights of some rows read by read, at least 0, float64."""


def coupled_sample(
    safe_log_probs: Tensor, log_probs: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """Draw from p* so that the token is the safe model's own draw as often as possible.

    safe_log_probs, log_probs: (B, V) float, nats, each row normalised; p* may have mass where p_s
    has none. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, never one with p* = 0, and accepted (B,) bool; accepted with
    probability 1 - TV(p*, p_s), the most any coupling reaches.
    Raises: ValueError if the shapes differ.
    Source: the acceptance rule of Leviathan et al. 2023, "Fast inference from transformers via
    speculative decoding", algorithm 1, with the uniforms fixed beforehand.
    """
    if safe_log_probs.ndim != 2 or safe_log_probs.shape != log_probs.shape:
        raise ValueError(
            f"safe_log_probs and log_probs must both be (B, V), "
            f"got {tuple(safe_log_probs.shape)} and {tuple(log_probs.shape)}"
        )
    check_uniform(uniform, len(log_probs))
    safe_log_probs, log_probs = safe_log_probs.double(), log_probs.double()
    draft = inverse_cdf(safe_log_probs.exp(), uniform[:, 0])
    safe_prob = safe_log_probs.gather(1, draft[:, None])[:, 0].exp()
    prob = log_probs.gather(1, draft[:, None])[:, 0].exp()
    weights = _residual(safe_log_probs, log_probs)
    # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
    is_empty = weights.sum(-1) <= 0.0
    accepted = (uniform[:, 1] * safe_prob < prob) | (is_empty & (prob > 0.0))
    weights = torch.where(is_empty[:, None], log_probs.exp(), weights)
    return torch.where(accepted, draft, inverse_cdf(weights, uniform[:, 2])), accepted


def sample_law(law: RatioLaw, is_valid: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """`coupled_sample` for a law kept as two rows of logits, without its log-probabilities.

    is_valid: (B,) bool. uniform: (B, 3) float64 in [0, 1).
    Returns: token_ids (B,) int64, -1 where not valid, and accepted (B,) bool.
    """
    valid, uniforms = is_valid.cpu().numpy(), uniform.cpu().numpy()
    device = is_valid.device
    rows = np.flatnonzero(valid)
    reader = _LawReader(law, len(rows))
    safe_pieces = law.safe_pieces.cpu().numpy()
    token_ids = np.full(len(valid), -1)
    token_ids[rows] = reader.draw(rows, safe_pieces[rows], uniforms[rows, 0], reader.safe_weights)
    drafts = torch.from_numpy(token_ids.clip(0)).to(device)
    log2_prob, log2_safe_prob = token_log2_probs(law, drafts)
    ratio = (log2_prob - log2_safe_prob).exp2().cpu().numpy()
    accepted = valid & (uniforms[:, 1] < ratio)
    rejected = np.flatnonzero(valid & ~accepted)
    if len(rejected):
        accepted[rejected], others = _replacements(reader, rejected, ratio, uniforms[:, 2])
        token_ids[rejected] = np.where(accepted[rejected], token_ids[rejected], others)
    return torch.from_numpy(token_ids).to(device), torch.from_numpy(accepted).to(device)


def _replacements(
    reader: _LawReader, rows: Rows, ratio: Floats, uniform: Floats
) -> tuple[NDArray[np.bool_], Rows]:
    """Whether the drafts of these rows stand after all, and what takes the place of the others.

    rows: (A,). ratio: (B,), p* / p_s of the drafts. uniform: (B,).
    """
    token_ids, stands = np.zeros_like(rows), np.zeros(len(rows), dtype=np.bool_)
    weights = reader.residual_weights
    masses = reader.masses(rows, weights)
    has_residual = masses.sum(1) > 0.0
    if not has_residual.all():
        # Rounding can leave no residual though the draft failed: then p* is p_s to rounding.
        stands = ~has_residual & (ratio[rows] > 0.0)
        is_stranded = ~has_residual & ~stands
        stranded = rows[is_stranded]
        shared = reader.masses(stranded, reader.shared_weights)
        last = uniform[stranded]
        token_ids[is_stranded] = reader.draw(stranded, shared, last, reader.shared_weights)
        rows, masses = rows[has_residual], masses[has_residual]
    token_ids[has_residual] = reader.draw(rows, masses, uniform[rows], weights)
    return stands, token_ids


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first index at which the running sum of the weights exceeds uniform times their total.

    weights: (A, N) float64, at least 0, each row with a positive sum. uniform: (A,) in [0, 1).
    Returns: (A,) int64; its weight is positive.
    """
    running_sum = weights.cumsum(-1)
    return _first_above(running_sum, uniform * running_sum[:, -1])


def check_uniform(uniform: Tensor, num_rows: int) -> None:
    """Raise ValueError unless `uniform` is (num_rows, 3) float64 in [0, 1)."""
    if uniform.shape != (num_rows, 3) or uniform.dtype != torch.float64:
        raise ValueError(
            f"uniform must be ({num_rows}, 3) float64, got {tuple(uniform.shape)} {uniform.dtype}"
        )
    host = uniform.cpu().numpy()
    if not ((host >= 0.0) & (host < 1.0)).all():
        raise ValueError(f"uniform must be in [0, 1), got {uniform.tolist()}")


def _first_above(running_sum: Tensor, target: Tensor) -> Tensor:
    # Below the last sum: an index whose weight is positive exists, whatever the sums' rounding.
    last = torch.nextafter(running_sum[:, -1], torch.zeros_like(target))
    return torch.searchsorted(running_sum, torch.minimum(target, last)[:, None], right=True)[:, 0]


def _residual(safe_log_probs: Tensor, log_probs: Tensor) -> Tensor:
    """(p* - p_s)_+ as p* (1 - exp(-log p*/p_s)), which keeps its digits where the two nearly agree
    and stays finite where p_s underflows or is 0."""
    log_ratio = torch.where(log_probs > -torch.inf, log_probs - safe_log_probs, 0.0)
    return log_ratio.neg_().expm1_().neg_().clamp_min_(0.0).mul_(log_probs.exp())


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

    def masses(self, rows: Rows, weights: Weights) -> Floats:
        """rows: (A,). Returns: (A, num_pieces), the weight in each piece of the vocabulary."""
        masses = np.zeros((len(rows), self._pair.num_pieces))
        for places, group in self._pair.row_groups(self._on_device(rows)):
            sums = torch.cat([read.sums() for read in weights(group)], 1)
            masses[places] = sums.cpu().numpy()
        return masses

    def draw(self, rows: Rows, masses: Floats, uniform: Floats, weights: Weights) -> Rows:
        """Inverse CDF in two levels: the piece by its mass, then the token inside it.

        rows: (A,). masses: (A, num_pieces). uniform: (A,). Returns: (A,) token ids.
        """
        running_sum = masses.cumsum(1)
        target = uniform * running_sum[:, -1]
        piece = _index_above(running_sum, target)
        before = np.where(piece > 0, running_sum[np.arange(len(piece)), piece - 1], 0.0)
        inside = np.zeros_like(piece)
        for places, group in self._pair.piece_groups(self._on_device(rows), piece.tolist()):
            (read,) = weights(group)
            sums = read.values.cumsum(-1).cpu().numpy()
            inside[places] = _index_above(sums, (target - before)[places])
        return PIECE_SIZE * piece + inside

    def _on_device(self, rows: Rows) -> Tensor:
        return torch.from_numpy(rows).to(self._pair.safe.device)


def _index_above(running_sum: Floats, target: Floats) -> Rows:
    """What `_first_above` finds, on the host and in a few numbers a row."""
    last = np.nextafter(running_sum[:, -1], 0.0)
    is_above: NDArray[np.bool_] = running_sum > np.minimum(target, last)[:, None]
    index: Rows = is_above.argmax(1)
    return index


def _weights_and_tilt(memory: Tensor, width: int) -> tuple[PieceWeights, Tensor]:
    weights, tilt = memory.unbind(1)
    return piece_weights(weights, width), tilt[:, :width]
