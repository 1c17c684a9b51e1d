"""The order of training: which source each position takes, which of its sequences."""

import hashlib
import heapq
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm


@dataclass(frozen=True, slots=True)
class _Split:
    """An inner node: its first m positions give round(m * left_weight / weight) to the left."""

    left: "_Split | int"
    right: "_Split | int"
    left_weight: int
    weight: int

    def left_count(self, num_positions: int) -> int:
        return (2 * num_positions * self.left_weight + self.weight) // (2 * self.weight)


class Mixture:
    """A fixed interleaving in which every prefix holds each source in proportion to its weight.

    With k_s(i) the number of the first i positions that belong to source s, and w_s its share,
    |k_s(i) - w_s i| < 1.68 for every s and i. The sources are the leaves
    of a Huffman tree, and each node deals its positions to its two children by rounding, which is
    off by at most 1/2; an error made at an ancestor of weight W reaches the leaf scaled by
    w_s / W. In a Huffman tree the weights on the way up grow at least like the Fibonacci numbers,
    and half the sum of their reciprocals is 1.68. Integers only: the same on every machine.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        """weights: one positive number per source; only their ratios matter."""
        scale = lcm(*(weight.denominator for weight in weights))
        self.weights = [int(weight * scale) for weight in weights]
        self._root, self._paths = _huffman_tree(self.weights)

    def locate(self, position: int) -> tuple[int, int]:
        """(source, occurrence): `position` holds the source's sequence number `occurrence`."""
        node = self._root
        while isinstance(node, _Split):
            # The position is the child's whose count it raises; it goes on as a position of that.
            before = node.left_count(position)
            if node.left_count(position + 1) > before:
                node, position = node.left, before
            else:
                node, position = node.right, position - before
        return node, position

    def position(self, source: int, occurrence: int) -> int:
        """Position at which `locate` has this sequence of this source."""
        position = occurrence
        for node, is_left in self._paths[source]:
            twice = (2 * position + 1) * node.weight
            if is_left:  # the first position after which the left has one more
                position = -(-twice // (2 * node.left_weight)) - 1
            else:
                position = twice // (2 * (node.weight - node.left_weight))
        return position

    def counts(self, num_positions: int) -> list[int]:
        """Number of the first `num_positions` positions that belong to each source."""
        counts = [0] * len(self.weights)
        pending: list[tuple[_Split | int, int]] = [(self._root, num_positions)]
        while pending:
            node, count = pending.pop()
            if isinstance(node, _Split):
                left = node.left_count(count)
                pending += [(node.left, left), (node.right, count - left)]
            else:
                counts[node] = count
        return counts


_Path = list[tuple[_Split, bool]]
"""From a leaf to the root: each node above it, and whether the leaf is on its left."""


def _huffman_tree(weights: Sequence[int]) -> tuple[_Split | int, list[_Path]]:
    """The root, and the path of each source."""
    paths: list[_Path] = [[] for _ in weights]
    # The counter breaks ties, so that the tree does not depend on how nodes compare.
    heap: list[tuple[int, int, _Split | int, list[int]]] = [
        (weight, source, source, [source]) for source, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    order = len(heap)
    # The two lightest nodes become one, until one is left: so weights grow fast on the way up.
    while len(heap) > 1:
        left_weight, _, left, left_sources = heapq.heappop(heap)
        right_weight, _, right, right_sources = heapq.heappop(heap)
        split = _Split(left, right, left_weight, left_weight + right_weight)
        for sources, is_left in ((left_sources, True), (right_sources, False)):
            for source in sources:
                paths[source].append((split, is_left))
        heapq.heappush(heap, (split.weight, order, split, left_sources + right_sources))
        order += 1
    return heap[0][2], paths


_MASK64 = (1 << 64) - 1
_NUM_ROUNDS = 6


class KeyedPermutation:
    """A bijection of range(size): the same key gives the same order on every machine.

    A balanced Feistel network permutes the smallest power of four that holds `size`; an image
    outside range(size) is permuted again until it falls inside (cycle walking), at most four
    times on average. Source: Black and Rogaway 2002, "Ciphers with arbitrary finite domains".
    """

    def __init__(self, size: int, key: str) -> None:
        """size: at least 1. key: any text; other texts give other orders."""
        self.size = size
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _NUM_ROUNDS).digest()
        self._round_keys = list(struct.unpack(f"<{_NUM_ROUNDS}Q", digest))

    def __getitem__(self, index: int) -> int:
        """The element at `index`, both in range(size)."""
        return self._walk(index, self._round_keys)

    def index(self, element: int) -> int:
        """Index of `element`, both in range(size)."""
        # The same network, with the keys in the opposite order and the halves exchanged.
        return self._walk(element, self._round_keys[::-1], is_exchanged=True)

    def _walk(self, value: int, round_keys: list[int], *, is_exchanged: bool = False) -> int:
        half_bits = self._half_bits
        mask = (1 << half_bits) - 1
        while True:
            # 1. Six rounds, each of which changes one half by what the other one scrambles to: each
            # can be undone whatever scrambling does, so that all of them are a permutation.
            left, right = value >> half_bits, value & mask
            if is_exchanged:
                left, right = right, left
            for round_key in round_keys:
                left, right = right, left ^ (_scramble(right ^ round_key) & mask)
            # 2. An image outside of the range is permuted again, until one falls inside.
            value = right << half_bits | left if is_exchanged else left << half_bits | right
            if value < self.size:
                return value


def _scramble(value: int) -> int:
    # Finalizer of splitmix64 (Steele et al. 2014): every input bit reaches every output bit.
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)
