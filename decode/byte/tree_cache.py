"""The cache slots of a token tree, and what a forward of more nodes attends to."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..streams.kv_cache import RowAttention, RowCache, uploaded
from ..streams.row_stream import ModelRunner
from .token_tree import ROOT_NODE, TokenTree


@dataclass(frozen=True, slots=True)
class TreeForward:
    """One forward of K nodes of a tree over a cache of P slots; their slots become P..P+K-1.

    nodes: parents first; before them the first forward of a tree has the start tokens but the last,
    which is the root's. token_ids: (K,) int64. slot_positions: (P + K,) int64, the tokens before
    each slot's token. mask: (K, P + K) bool, where a token attends: its ancestors and itself.
    """

    nodes: list[int]
    token_ids: NDArray[np.int64]
    slot_positions: NDArray[np.int64]
    mask: NDArray[np.bool_]


class TreeCache:
    """The cache slots of one row's tree: start tokens first, then nodes as they were computed.

    A slot is kept while its node is alive. The first `num_causal` slots hold the start tokens and
    the beginning of the trunk in order: attention is causal there, and no mask walks them.
    """

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self._num_start = len(tree.vocabulary.start_token_ids)
        self._nodes = [ROOT_NODE] * self._num_start
        self._positions = [*range(self._num_start)]
        self._slot = {ROOT_NODE: self._num_start - 1}
        self.num_causal = self._num_start
        self._num_computed = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing was computed yet, not even the start tokens."""
        return self._num_computed == 0

    @property
    def num_slots(self) -> int:
        """Slots in use, those of dead nodes not yet dropped included."""
        return len(self._nodes)

    @property
    def num_dead(self) -> int:
        """Slots that no later forward attends to."""
        nodes = self._nodes[self.num_causal :]
        return len(nodes) - sum(map(self.tree.is_alive, nodes))

    def position(self, node: int) -> int:
        """Number of tokens before the node's token, start tokens included."""
        return self._num_start - 1 + self.tree.depth[node]

    def missing(self, nodes: Iterable[int]) -> list[int]:
        """The `nodes` and their ancestors that have no slot, parents first."""
        missing: set[int] = set()
        for node in nodes:
            while node not in self._slot and node not in missing:
                missing.add(node)
                node = self.tree.parent[node]
        return sorted(missing)

    def add(self, nodes: list[int]) -> TreeForward:
        """Give slots to `nodes`, parents first, and say how to compute them."""
        # 1. Slots; those of the trunk before any mask, which then need not walk them.
        first, self._num_computed = self._num_computed, self.num_slots + len(nodes)
        for node in nodes:
            self._take_slot(node)
        self._count_causal()
        # 2. Tokens, and what each attends to.
        start, new = self.tree.vocabulary.start_token_ids, self._nodes[first:]
        tokens = [*start[first:], *(self.tree.token[node] for node in nodes)]
        mask = np.zeros((len(new), self.num_slots), np.bool_)
        for slot, row in enumerate(mask, first):
            self._attend(slot, row)
        return TreeForward(
            new[max(0, len(start) - 1 - first) :],
            np.array(tokens, np.int64),
            np.array(self._positions, np.int64),
            mask,
        )

    def compact(self) -> tuple[int, list[int]]:
        """Drop the slots of dead nodes.

        Returns: (first, kept): slots below `first` stay; of the later ones those of `kept`, in
        order, move to `first` and on.
        """
        first, kept = self.num_causal, []
        moved, self._nodes = self._nodes[first:], self._nodes[:first]
        del self._positions[first:]
        for slot, node in enumerate(moved, first):
            del self._slot[node]
            if self.tree.is_alive(node):
                kept.append(slot)
                self._take_slot(node)
        self._count_causal()
        self._num_computed = self.num_slots
        return first, kept

    def _take_slot(self, node: int) -> None:
        self._slot[node] = len(self._nodes)
        self._nodes.append(node)
        self._positions.append(self.position(node))

    def _attend(self, slot: int, row: NDArray[np.bool_]) -> None:
        while slot >= self.num_causal:
            row[slot] = True
            slot = self._slot[self.tree.parent[self._nodes[slot]]]
        row[: slot + 1] = True

    def _count_causal(self) -> None:
        trunk = self.tree.trunk()
        while self.num_causal < self.num_slots:
            index = self.num_causal - self._num_start
            if index >= len(trunk) or self._nodes[self.num_causal] != trunk[index]:
                return
            self.num_causal += 1


NO_NODES = TreeForward([], np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones((1, 1), np.bool_))
"""The forward of a row that takes part for nothing: one node that is thrown away."""

# R rows of one forward, K nodes, C columns of the cache, D hidden size.

MAX_COLUMNS = 1 << 30


class TreeBackbone:
    """Keys and values of B rows whose slots are those of a TreeCache each, and what fills them.

    A row's hidden states depend on its tree alone. Storage grows with the longest row.
    """

    def __init__(self, runner: ModelRunner, attention: RowAttention, num_rows: int) -> None:
        self.attention, model = attention, runner.model
        self._device, self._dtype = model.device, model.dtype  # which models look for every time
        self._backbone = runner.backbone(attention)
        self.cache = RowCache(model.config.num_hidden_layers, num_rows, MAX_COLUMNS)

    def forward(self, forwards: Mapping[int, TreeForward]) -> dict[int, Tensor]:
        """Hidden states (nodes, D) of new nodes, by row as the forwards are."""
        # 1. To pick so many rows' keys and values may cost more than to compute others' nodes.
        by_row, everyone = dict(forwards), range(self.cache.num_rows)
        num_new = max(len(forward.token_ids) for forward in by_row.values())
        if (len(everyone) - len(by_row)) * num_new < len(by_row):
            by_row = {row: by_row.get(row, NO_NODES) for row in everyone}
        # 2. Tokens, and what they attend to, padded to the row that has most of either.
        counts = [len(forward.token_ids) if forward.nodes else 0 for forward in by_row.values()]
        device = self._device
        placement = self.cache.prepare([*by_row], num_new, device)
        mask = np.zeros((len(by_row), num_new, placement.num_columns), np.bool_)
        for row, forward in zip(mask, by_row.values(), strict=True):
            row[: forward.mask.shape[0], : forward.mask.shape[1]] = forward.mask
        token_ids = [forward.token_ids for forward in by_row.values()]
        keys = [forward.slot_positions for forward in by_row.values()]
        queries = [positions[-count:] for positions, count in zip(keys, counts, strict=True)]
        positions = uploaded(_padded(queries, num_new), device)
        masks = self.attention.tree_masks(
            uploaded(torch.from_numpy(mask), device),
            positions,
            uploaded(_padded(keys, placement.num_columns), device),
            self._dtype,
        )
        # 3. The forward; a row keeps its new slots, and its nodes are the last of them.
        tokens = uploaded(_padded(token_ids, num_new), device)
        hidden = self._backbone(tokens, positions, masks, self.cache)
        self.cache.advance([*by_row], counts)
        states = dict(zip(by_row, zip(hidden.unbind(), counts, strict=True), strict=True))
        return {
            row: states[row][0][states[row][1] - len(forward.nodes) : states[row][1]]
            for row, forward in forwards.items()
        }


def _padded(rows: list[NDArray[np.int64]], width: int) -> Tensor:
    """(rows, width) int64; padding repeats a row's first entry, so that it is a valid one."""
    padded = np.empty((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)], target[len(row) :] = row, row[0]
    return torch.from_numpy(padded)
