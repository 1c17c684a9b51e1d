"""A model without its output layer over the token trees of a batch of rows."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from ..backbone import backbone_of, read_prompts
from ..kv_cache import Placement, RowCache
from ..row_attention import Masks, RowAttention
from ..row_stream import right_padded
from ..upload import uploaded
from .tree_cache import TreeForward

# R rows of one forward, K nodes, C columns of the cache, D hidden size.

MAX_COLUMNS = 1 << 30


class TreeBackbone:
    """Keys and values of B rows whose slots are those of a TreeCache each, and what fills them.

    A row's hidden states depend on its own tree alone. Storage grows with the longest row.
    """

    def __init__(self, model: PreTrainedModel, attention: RowAttention, num_rows: int) -> None:
        self.model, self.attention = model, attention
        self._backbone = backbone_of(model, attention)
        self._cache = RowCache(model.config.num_hidden_layers, num_rows, MAX_COLUMNS)

    def read(self, prompts: list[list[int]], rows: list[int]) -> list[Tensor]:
        """Hidden states (length, D) of token sequences, read causally into empty rows."""
        token_ids, lengths = right_padded(prompts)
        token_ids = token_ids.to(self.model.device)
        hidden = read_prompts(self._backbone, self._cache, rows, token_ids, lengths)
        return [states[:length] for states, length in zip(hidden, lengths, strict=True)]

    def forward(
        self, rows: list[int], forwards: list[TreeForward], slot_positions: list[NDArray[np.int64]]
    ) -> list[Tensor]:
        """Hidden states (nodes, D) of new nodes of some rows.

        slot_positions: per row (slots,) int64, new ones included; read where layers have a window.
        """
        counts = [len(forward.nodes) for forward in forwards]
        place = self._cache.place(rows, max(counts), self.model.device)
        token_ids, positions = (
            uploaded(_padded(values, max(counts)), self.model.device)
            for values in (
                [forward.token_ids for forward in forwards],
                [forward.positions for forward in forwards],
            )
        )
        masks = self._masks(place, forwards, positions, slot_positions)
        hidden = self._backbone(token_ids, positions, masks, self._cache)
        self._cache.advance(rows, counts)
        return [states[:count] for states, count in zip(hidden, counts, strict=True)]

    def keep(self, row: int, first: int, columns: Sequence[int]) -> None:
        """Compact a row: slots below `first` stay, those of `columns` follow them."""
        self._cache.keep(row, first, columns)

    def states(self, row: int) -> list[tuple[Tensor, Tensor]]:
        """A copy of a row, for `restore`."""
        return self._cache.states(row)

    def restore(self, row: int, states: list[tuple[Tensor, Tensor]]) -> None:
        """Fill an empty row."""
        self._cache.restore(row, states)

    def free(self, row: int) -> None:
        """Empty a row."""
        self._cache.free(row)

    def _masks(
        self,
        place: Placement,
        forwards: list[TreeForward],
        positions: Tensor,
        slot_positions: list[NDArray[np.int64]],
    ) -> Masks:
        device = self.model.device
        mask = uploaded(_ancestors(forwards, positions.shape[1], place.num_columns), device)
        keys = positions
        if self.attention.span is not None:
            keys = uploaded(_padded(slot_positions, place.num_columns), device)
        return self.attention.tree_masks(mask, positions, keys, self.model.dtype)


def _ancestors(forwards: list[TreeForward], num_nodes: int, num_columns: int) -> Tensor:
    """(R, num_nodes, num_columns) bool: masks of the rows, False in the padding."""
    if len(forwards) == 1:
        return torch.from_numpy(forwards[0].mask[None])
    mask = np.zeros((len(forwards), num_nodes, num_columns), np.bool_)
    for row, forward in zip(mask, forwards, strict=True):
        row[: forward.mask.shape[0], : forward.mask.shape[1]] = forward.mask
    return torch.from_numpy(mask)


def _padded(rows: list[NDArray[np.int64]], width: int) -> Tensor:
    """(rows, width) int64; padding repeats a row's first entry, so that it is one of its own."""
    if len(rows) == 1 and len(rows[0]) == width:
        return torch.from_numpy(rows[0][None])
    padded = np.empty((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)], target[len(row) :] = row, row[0]
    return torch.from_numpy(padded)
