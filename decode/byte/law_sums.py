"""Sums of many nodes' laws over intervals of the vocabulary, from tiles of their logits."""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .log_sums import Array, segment_log_sums
from .node_law import LEAST_WEIGHT

# N laws, C columns, T columns of one tile, I times K intervals.


class LawSums:
    """Logs of sums of exp(logit) over intervals of allowed columns, N laws at once.

    The logits come tile by tile, so those of all columns need never exist. Intervals cut a law's
    columns into *pieces*; each is read once, summed in float64, and serves all that hold it.
    """

    def __init__(
        self, allowed: NDArray[np.bool_], law: NDArray[np.int64], intervals: NDArray[np.int64]
    ) -> None:
        """allowed: (N, C), others count as banned. law: (I,) in [0, N), and intervals: (I, K, 2),
        half-open columns, K of it: what to sum."""
        self._allowed = allowed
        num_columns = allowed.shape[1]
        self._bounds = law[:, None, None] * num_columns + intervals
        law, column = np.divmod(np.unique(self._bounds), num_columns)
        by_column = np.argsort(column)
        self._cut_law, self._cut_column = law[by_column], column[by_column]
        self._pieces: list[tuple[NDArray[np.int64], Array]] = []

    def add(self, first: int, logits: Tensor) -> None:
        """Sum a tile, logits (N, T) of columns `first` and on.

        Exponentials are taken in float32 (float64 for float64). NaN or +inf gives NaN.
        """
        scores = (logits if logits.dtype == torch.float64 else logits.float()).cpu()
        width = scores.shape[1]
        law, column = np.divmod(self._starts(first, width), width)
        logs = _log_sums(scores, self._allowed[:, first : first + width], law, column)
        self._pieces.append((law * self._allowed.shape[1] + column + first, logs))

    def log_sums(self) -> Array:
        """(I, K) float64 nats, -inf for none, once all columns were added."""
        starts, logs = (np.concatenate(parts) for parts in zip(*self._pieces, strict=True))
        order = np.argsort(starts)
        low, high = np.searchsorted(starts[order], self._bounds.reshape(-1, 2)).T
        sums = np.full(len(low), -math.inf)
        lengths = (high - low)[is_some := low < high]
        begin = np.cumsum(lengths) - lengths
        pieces = np.repeat(low[is_some] - begin, lengths) + np.arange(lengths.sum())
        sums[is_some] = segment_log_sums(logs[order[pieces]], begin)
        return sums.reshape(self._bounds.shape[:-1])

    def _starts(self, first: int, width: int) -> NDArray[np.int64]:
        """Where pieces begin in the flattened tile; every law's first column begins one."""
        low, high = np.searchsorted(self._cut_column, (first + 1, first + width))
        cuts = self._cut_law[low:high] * width + self._cut_column[low:high] - first
        return np.sort(np.concatenate([cuts, np.arange(len(self._allowed)) * width]))


def _log_sums(
    scores: Tensor, allowed: NDArray[np.bool_], law: NDArray[np.int64], column: NDArray[np.int64]
) -> Array:
    """Of the pieces that begin at these columns of these laws, in order."""
    top = scores.amax(1)
    weights = scores.sub(top[:, None]).exp_().numpy()
    weights *= allowed
    starts = law * scores.shape[1] + column
    sums = np.add.reduceat(weights.ravel(), starts, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + top.double().numpy()[law]
    for row in _wide(scores, top):
        masked = np.where(allowed[row], scores[row].double().numpy(), -math.inf)
        logs[law == row] = segment_log_sums(masked, column[law == row])
    return logs


def _wide(scores: Tensor, top: Tensor) -> list[int]:
    """Rows whose smallest weights are too small to be summed on the scale of the largest."""
    rows, largest = scores.numpy(), top.numpy()
    spread = -math.log(LEAST_WEIGHT[rows.dtype])
    is_wide = (rows.min(1) < largest - spread) & (largest < math.inf) | (largest == -math.inf)
    return np.flatnonzero(is_wide).tolist()
