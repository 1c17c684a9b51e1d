"""Which keys and values of a token tree a model holds, and what a forward of more nodes attends."""

from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.kv_cache import RowAttention, RowCache, uploaded
from ..models.row_stream import ModelRunner, prefill, right_padded
from .token_tree import ROOT_NODE, TokenTree


@dataclass(frozen=True, slots=True)
class TreeForward:
    """One forward of K nodes of a tree over a cache of P slots; their slots become P..P+K-1.

    token_ids, positions: (K,) int64; a position counts tokens before it, start tokens included, and
    is not the slot. mask: (K, P + K) bool, True where a token attends: its ancestors and itself.
    """

    nodes: list[int]
    token_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    mask: NDArray[np.bool_]


class TreeCache:
    """The cache slots of one row's tree: start tokens first, then nodes as they were computed.

    A slot is kept while its node is alive (see TokenTree). The longest stretch of slots that holds
    the start tokens and the first nodes of the trunk in order is `num_causal`: for those,
    attention is causal and no mask needs to walk them.
    """

    def __init__(self, tree: TokenTree) -> None:
        self.tree = tree
        self._num_start = len(tree.vocabulary.start_token_ids)
        self._nodes = [ROOT_NODE] * self._num_start
        self._slot = {ROOT_NODE: self._num_start - 1}
        self.num_causal = self._num_start

    def __contains__(self, node: object) -> bool:
        return node in self._slot

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

    def add_trunk(self) -> list[int]:
        """Give slots to the trunk, in order, before any other node has one; returns its nodes."""
        nodes = self.tree.trunk()[self.num_causal - self._num_start :]
        for node in nodes:
            self._take_slot(node)
        self._count_causal()
        return nodes

    def add(self, nodes: list[int]) -> TreeForward:
        """Give slots to `nodes`, parents first, and say how to compute them."""
        past = self.num_slots
        for node in nodes:
            self._take_slot(node)
        mask = np.zeros((len(nodes), past + len(nodes)), np.bool_)
        for node, row in zip(nodes, mask, strict=True):
            self._attend(node, row)
        return TreeForward(
            nodes,
            np.array([self.tree.token[node] for node in nodes], np.int64),
            np.array([self.position(node) for node in nodes], np.int64),
            mask,
        )

    def with_trunk(self, forward: TreeForward) -> TreeForward:
        """The forward over an empty cache that computes the slots before `forward` too."""
        num_nodes, num_slots = forward.mask.shape
        past = num_slots - num_nodes
        assert past == self.num_causal, "slots before the new ones are not of the trunk"
        tokens = [self.tree.token[node] for node in self._nodes[self._num_start : past]]
        before = np.array([*self.tree.vocabulary.start_token_ids, *tokens], np.int64)
        causal = np.pad(np.tri(past, dtype=np.bool_), ((0, 0), (0, num_nodes)))
        return TreeForward(
            [*self._nodes[:past], *forward.nodes],
            np.concatenate([before, forward.token_ids]),
            self.slot_positions(),
            np.concatenate([causal, forward.mask]),
        )

    def slot_positions(self) -> NDArray[np.int64]:
        """(num_slots,) position of each slot's token."""
        nodes = self._nodes[self._num_start :]
        return np.array([*range(self._num_start), *map(self.position, nodes)], np.int64)

    def compact(self, needed: Container[int] = ()) -> tuple[int, list[int]]:
        """Drop the slots of dead nodes but those `needed`.

        Returns: (first, kept): slots below `first` stay; of the later ones those of `kept`, in
        order, move to `first` and on.
        """
        first = self.num_causal
        moved, self._nodes = self._nodes[first:], self._nodes[:first]
        stays = [self.tree.is_alive(node) or node in needed for node in moved]
        for node in moved:
            del self._slot[node]
        for node, is_kept in zip(moved, stays, strict=True):
            if is_kept:
                self._take_slot(node)
        self._count_causal()
        return first, [first + i for i, is_kept in enumerate(stays) if is_kept]

    def _take_slot(self, node: int) -> None:
        self._slot[node] = len(self._nodes)
        self._nodes.append(node)

    def _attend(self, node: int, row: NDArray[np.bool_]) -> None:
        slot = self._slot[node]
        while slot >= self.num_causal:
            row[slot] = True
            node = self.tree.parent[node]
            slot = self._slot[node]
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

    def read(self, prompts: list[list[int]], rows: list[int]) -> list[Tensor]:
        """Hidden states (length, D) of token sequences, read causally into empty rows."""
        token_ids, lengths = right_padded(prompts)
        token_ids = token_ids.to(self._device)
        hidden = prefill(self._backbone, self.cache, rows, token_ids, lengths)
        return [states[:length] for states, length in zip(hidden, lengths, strict=True)]

    def forward(
        self, rows: list[int], forwards: list[TreeForward], slot_positions: list[NDArray[np.int64]]
    ) -> list[Tensor]:
        """Hidden states (nodes, D) of new nodes of some rows.

        slot_positions: per row (slots,) int64, new ones included; read where layers have a window.
        """
        by_row = dict(zip(rows, zip(forwards, slot_positions, strict=True), strict=True))
        everyone, most = range(self.cache.num_rows), max(len(forward.nodes) for forward in forwards)
        if (len(everyone) - len(rows)) * most < len(rows):
            # To pick so many rows' keys and values costs more than to compute the others' nodes.
            by_row = {row: by_row.get(row, (NO_NODES, NO_NODES.positions)) for row in everyone}
        hidden = self._forward(by_row)
        return [hidden[row] for row in rows]

    def _forward(self, rows: dict[int, tuple[TreeForward, NDArray[np.int64]]]) -> dict[int, Tensor]:
        """Hidden states by row, from forward and positions by row."""
        forwards = [forward for forward, _ in rows.values()]
        counts, device = [len(forward.nodes) for forward in forwards], self._device
        placement = self.cache.prepare([*rows], max(counts), device)
        token_ids = uploaded(_padded([f.token_ids for f in forwards], max(counts)), device)
        positions = uploaded(_padded([f.positions for f in forwards], max(counts)), device)
        mask = uploaded(_ancestors(forwards, max(counts), placement.num_columns), device)
        keys = positions
        if self.attention.span is not None:
            slots = [slot_positions for _, slot_positions in rows.values()]
            keys = uploaded(_padded(slots, placement.num_columns), device)
        masks = self.attention.tree_masks(mask, positions, keys, self._dtype)
        hidden = self._backbone(token_ids, positions, masks, self.cache)
        self.cache.advance([*rows], counts)
        states = zip(rows, hidden.unbind(), counts, strict=True)
        return {row: hidden[:count] for row, hidden, count in states}


def _ancestors(forwards: list[TreeForward], num_nodes: int, num_columns: int) -> Tensor:
    """(R, num_nodes, num_columns) bool: masks of the rows, False in the padding."""
    if len(forwards) == 1:
        return torch.from_numpy(forwards[0].mask[None])
    mask = np.zeros((len(forwards), num_nodes, num_columns), np.bool_)
    for row, forward in zip(mask, forwards, strict=True):
        row[: forward.mask.shape[0], : forward.mask.shape[1]] = forward.mask
    return torch.from_numpy(mask)


def _padded(rows: list[NDArray[np.int64]], width: int) -> Tensor:
    """(rows, width) int64; padding repeats a row's first entry, so that it is a valid one."""
    if len(rows) == 1 and len(rows[0]) == width:
        return torch.from_numpy(rows[0][None])
    padded = np.empty((len(rows), width), np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)], target[len(row) :] = row, row[0]
    return torch.from_numpy(padded)
