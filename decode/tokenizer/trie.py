"""The vocabulary sorted by bytes, its trie as flat arrays, and masks of its rows."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

ROOT = 0
Row = NDArray[np.bool_]
Key = TypeVar("Key", bound=Hashable)


class ByteTrie:
    """Tokens sorted by bytes; every byte prefix is an interval of them and a node of the trie.

    Rows are indices in the sorted order: `tokens` (V,) int32 and `texts` are what each row holds,
    `row_of` is the row of a token. Nodes are numbered level by level, so the children of a node are
    consecutive. By node, int32: `low`, `high`, the rows with its prefix; `num_ends`, how many of
    the first of them are exactly that prefix; `first_child`, `num_children`. int64: `symbol`, the
    last byte of the prefix; `start`, the first row among those `longer` than the parent's prefix.
    """

    def __init__(self, bytes_of: Mapping[int, bytes]) -> None:
        """bytes_of: the non-empty bytes of each token; two tokens may share theirs."""
        order = sorted(bytes_of, key=lambda token: (bytes_of[token], token))
        self.texts = texts = [bytes_of[token] for token in order]
        self.tokens = np.array(order, np.int32)
        self.row_of = {token: row for row, token in enumerate(order)}
        levels = np.concatenate(_levels(texts), axis=1)
        low, high, num_ends, parent, byte = levels
        self.low, self.high, self.num_ends = (x.astype(np.int32) for x in (low, high, num_ends))
        num_nodes = len(self.low)
        self.num_children = np.bincount(parent[1:], minlength=num_nodes).astype(np.int32)
        self.first_child = np.searchsorted(parent[1:], np.arange(num_nodes)).astype(np.int32) + 1
        self.start = low - (low + num_ends)[parent]
        self.symbol = byte.copy()
        self._bytes: bytes = byte.astype(np.uint8).tobytes()

    def child(self, node: int, byte: int) -> int:
        """The node one byte further, or -1 where no token goes on."""
        start = self.first_child[node]
        return self._bytes.find(byte, start, start + self.num_children[node])

    def children(self, node: int) -> slice:
        """The consecutive nodes one byte further."""
        start = self.first_child[node]
        return slice(start, start + self.num_children[node])

    def longer(self, node: int) -> tuple[int, int]:
        """The rows whose bytes start with the node's prefix and are longer, half-open."""
        return self.low[node] + self.num_ends[node], self.high[node]

    def ends(self, node: int) -> list[int]:
        """The tokens whose bytes are exactly the node's prefix."""
        low = self.low[node]
        tokens: list[int] = self.tokens[low : low + self.num_ends[node]].tolist()
        return tokens

    def interval(self, prefix: bytes) -> tuple[int, int]:
        """The rows whose bytes start with `prefix`, as a half-open interval."""
        node = ROOT
        for byte in prefix:
            node = self.child(node, byte)
            if node < 0:
                return 0, 0
        return int(self.low[node]), int(self.high[node])


def _levels(texts: Sequence[bytes]) -> list[NDArray[np.int64]]:
    """(low, high, num_ends, parent, byte) of the nodes of each depth, as rows of one array each."""
    lengths = np.array([len(text) for text in texts])
    shares = np.arange(len(texts)) > 0  # the bytes up to the depth, with the row before
    flat = np.frombuffer(b"".join(texts), np.uint8)
    starts = np.cumsum(lengths) - lengths
    node_of_row = np.zeros(len(texts), np.int64)
    levels = [np.array([[0], [len(texts)], [0], [0], [0]])]
    num_nodes = 1
    for depth in range(1, int(lengths.max()) + 1):
        rows = np.flatnonzero(lengths >= depth)
        last = flat[starts[rows] + depth - 1]
        shares[rows[1:]] &= (last[1:] == last[:-1]) & (np.diff(rows) == 1)
        is_first = ~shares[rows]  # rows with one prefix are consecutive
        is_first[0] = True
        low = rows[is_first]
        node = np.cumsum(is_first) - 1
        high = low + np.bincount(node)
        num_ends = np.bincount(node[lengths[rows] == depth], minlength=len(low))
        byte = last[is_first]
        levels.append(np.stack((low, high, num_ends, node_of_row[low], byte)))
        node_of_row[rows] = num_nodes + node
        num_nodes += len(low)
    return levels


def cached_rows(compute: Callable[[Key], Row], num_rows: int, length: int) -> Callable[[Key], Row]:
    """`compute`, of which the last `num_rows` results are kept, (length,) bool, packed to bits.

    A row of 128k columns takes 16 kB.
    """
    packed = lru_cache(num_rows)(lambda key: np.packbits(compute(key)))
    return lambda key: np.unpackbits(packed(key), count=length).view(np.bool_)
