"""The interleaving of sources: which source position i of the training stream takes."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import lcm
from typing import Any


@dataclass(frozen=True, slots=True)
class _Split:
    """An inner node: its first m positions give round(m * left_weight / weight) to the left."""

    left: "_Split | int"
    right: "_Split | int"
    left_weight: int
    weight: int

    def left_count(self, num_positions: Any) -> Any:
        return (2 * num_positions * self.left_weight + self.weight) // (2 * self.weight)


class Mixture:
    """A fixed interleaving in which every prefix holds each source in proportion to its weight.

    With k_s(i) the number of the first i positions that belong to source s, and w_s its share,
    |k_s(i) - w_s i| <= deviation_bounds[s] < 1.68 for every s and i. The sources are the leaves
    of a Huffman tree, and each node deals its positions to its two children by rounding, which is
    off by at most 1/2; an error made at an ancestor of weight W reaches the leaf scaled by
    w_s / W. In a Huffman tree the weights on the way up grow at least like the Fibonacci numbers,
    and half the sum of their reciprocals is 1.68. Integers only: the same on every machine.
    """

    def __init__(self, weights: Sequence[Fraction]) -> None:
        """weights: one positive number per source; only their ratios matter."""
        if not weights or min(weights) <= 0:
            raise ValueError(f"a mixture needs positive weights, got {[float(w) for w in weights]}")
        scale = lcm(*(weight.denominator for weight in weights))
        self.weights = [int(weight * scale) for weight in weights]
        self._root = _huffman_tree(self.weights)

    def locate(self, position: int) -> tuple[int, int]:
        """(source, occurrence): `position` holds the source's sequence number `occurrence`."""
        node = self._root
        while isinstance(node, _Split):
            before = node.left_count(position)
            if node.left_count(position + 1) > before:
                node, position = node.left, before
            else:
                node, position = node.right, position - before
        return node, position

    def counts(self, num_positions: Any) -> list[Any]:
        """How many of the first `num_positions` positions belong to each source.

        num_positions: an int; or an object array of Python's, whose products have no bounds, for
        many prefixes at once, and counts in arrays.
        """
        counts: list[Any] = [0] * len(self.weights)
        pending: list[tuple[_Split | int, Any]] = [(self._root, num_positions)]
        while pending:
            node, count = pending.pop()
            if isinstance(node, _Split):
                left = node.left_count(count)
                pending += [(node.left, left), (node.right, count - left)]
            else:
                counts[node] = count
        return counts

    @cached_property
    def deviation_bounds(self) -> list[float]:
        """For each source, the largest |k_s(i) - w_s i| that any prefix can have."""
        bounds = [0.0] * len(self.weights)
        pending: list[tuple[_Split | int, int, float]] = [(self._root, sum(self.weights), 0.0)]
        while pending:
            node, weight, reciprocals = pending.pop()
            if isinstance(node, _Split):
                for child, share in (
                    (node.left, node.left_weight),
                    (node.right, weight - node.left_weight),
                ):
                    pending.append((child, share, reciprocals + 1 / share))
            else:
                bounds[node] = weight * reciprocals / 2
        return bounds


def _huffman_tree(weights: Sequence[int]) -> _Split | int:
    # The counter breaks ties, so that the tree does not depend on how nodes compare.
    heap: list[tuple[int, int, _Split | int]] = [
        (weight, source, source) for source, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        left_weight, _, left = heapq.heappop(heap)
        right_weight, _, right = heapq.heappop(heap)
        weight = left_weight + right_weight
        heapq.heappush(heap, (weight, order, _Split(left, right, left_weight, weight)))
        order += 1
    return heap[0][2]
