"""The next-byte distributions of several texts from laws and masses that stay on their device."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.interval_sums import interval_log_sums
from ..upload import uploaded
from .byte_trie import ROOT, ByteTrie
from .byte_vocabulary import END_SYMBOL, NUM_SYMBOLS
from .device_laws import DeviceLaw
from .token_tree import Head

# R texts, H heads of the one with most, N heads of all, T rows of the trie.


class HeadTable:
    """Where the heads of R texts have the tokens that go on with each symbol, as the host knows it.

    rows: (R, H) int32, the place of each head among all. low, high: (R, H, 257) int32, intervals of
    the trie's rows; the end is row T. fresh: (R, H) float64, log masses of the heads where the
    text stands for its newest nodes alone. is_head: (R, H) bool, False for padding.
    """

    def __init__(self, heads: Sequence[Sequence[Head]], trie: ByteTrie) -> None:
        shape = (len(heads), max(1, *map(len, heads)))
        self.is_head = np.arange(shape[1]) < np.array([[len(own)] for own in heads])
        self.rows = np.zeros(shape, np.int32)
        self.rows[self.is_head] = np.arange(self.is_head.sum())
        self.fresh = np.full(shape, -np.inf)
        self.low = np.zeros((*shape, NUM_SYMBOLS), np.int32)
        self.high = np.zeros_like(self.low)
        for text, own in enumerate(heads):
            for place, (_, prefix) in enumerate(own):
                self._fill((text, place), prefix, trie)

    def _fill(self, at: tuple[int, int], prefix: int, trie: ByteTrie) -> None:
        children = trie.children(prefix)
        symbols = trie.byte[children]
        self.low[at][symbols] = trie.low[children]
        self.high[at][symbols] = trie.high[children]
        if prefix == ROOT:
            self.low[at][END_SYMBOL], self.high[at][END_SYMBOL] = np.array([0, 1]) + len(trie.texts)
            self.fresh[at] = 0.0


def log_probs_on_device(
    table: HeadTable, laws: Sequence[DeviceLaw], log_masses: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """log q of the next symbol (R, 257) float64, -inf where nothing follows, and the heads' masses.

    laws, log_masses: N of each, () float64, in the order of the table, on one device. A text to
    which they give no probability at all stands for its newest nodes alone: the masses returned
    are then those. Equal to `TreeMarginals` up to rounding; nothing waits for the device.
    """
    device = log_masses[0].device
    scores = torch.stack([law.scores for law in laws])
    totals = torch.stack([law.log_total for law in laws])
    rows, low, high = (_sent(array, device) for array in (table.rows, table.low, table.high))
    at = rows.long()
    is_head, fresh = _sent(table.is_head, device), _sent(table.fresh, device)
    known = torch.stack(list(log_masses))[at].masked_fill(~is_head, -torch.inf)
    both = torch.cat([known, fresh]) - totals[at].repeat(2, 1)
    sums = interval_log_sums(
        scores, rows.repeat(2, 1), both, low.repeat(2, 1, 1), high.repeat(2, 1, 1)
    )
    by_known, by_fresh = sums.chunk(2)
    is_dead = by_known.amax(-1, keepdim=True) == -torch.inf
    logs = torch.where(is_dead, by_fresh, by_known)
    total = logs.logsumexp(-1, keepdim=True)
    chosen = torch.where(is_dead, fresh, known)
    masses = [
        chosen[text, place] for text, own in enumerate(table.is_head) for place in range(own.sum())
    ]
    return (logs - total).masked_fill(total == -torch.inf, -torch.inf), masses


def _sent(values: NDArray[np.generic], device: torch.device) -> Tensor:
    return uploaded(torch.from_numpy(values), device)
