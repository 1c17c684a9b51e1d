"""The distribution of the next byte from the laws of a tree's nodes, some of them maybe unknown."""

import math

import numpy as np
from numpy.typing import NDArray

from ..tokenizer.trie import ROOT
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS
from .node_law import Array, NodeLaw, log_sum, log_sum_of
from .token_tree import ROOT_NODE, Head, TokenTree

LARGEST_SPREAD = 500.0
"""Nats between the masses of heads up to which they are summed on one scale."""


class TreeMarginals:
    """Masses of a growing tree's heads: W(bx) is summed over the heads whose law is known.

    A node's mass is the probability of its tokens behind `base`. It is known once its parent's law
    is; a head without a law is *pending*, and no more than the mass of its nearest ancestor (itself
    included) whose mass is known is missing from the sums on its account.
    """

    def __init__(self, tree: TokenTree, base: int = ROOT_NODE) -> None:
        """base: an ancestor of all heads; other nodes are given relative to it."""
        self.tree = tree
        self.laws: dict[int, NodeLaw] = {}
        self.log_mass = {base: 0.0}

    def append(self, byte: int) -> list[int]:
        """Grow the tree; returns the new nodes. Raises ValueError if `byte` cannot follow."""
        new = self.tree.append(byte)
        for node in new:
            self._weigh(node)
        heads = {head.node for head in self.tree.heads}
        kept = heads.union(self.missing())
        self.laws = {node: law for node, law in self.laws.items() if node in heads}
        self.log_mass = {node: mass for node, mass in self.log_mass.items() if node in kept}
        return new

    def add_law(self, node: int, law: NodeLaw) -> None:
        """Learn the law of a node; parents come first."""
        self.laws[node] = law
        for child in self.tree.children(node):
            self._weigh(child)

    def restart(self) -> None:
        """Let the text stand for its newest nodes alone, whatever led there."""
        self.log_mass = {
            node: 0.0 if prefix == ROOT else -math.inf for node, prefix in self.tree.heads
        }

    def missing(self) -> list[int]:
        """Nodes whose laws are needed to sum over all heads, parents first."""
        found: set[int] = set()
        for head in self.tree.heads:
            node = head.node
            if node not in self.laws:
                found.add(node)
                while node not in self.log_mass:
                    node = self.tree.parent[node]
                    found.add(node)
        return sorted(found)

    def pending(self) -> dict[int, list[int]]:
        """The same nodes by the one of known mass that they hang on, itself included."""
        groups: dict[int, list[int]] = {}
        for node in self.missing():
            above = node
            while above not in self.log_mass:
                above = self.tree.parent[above]
            groups.setdefault(above, []).append(node)
        return groups

    def log_masses(self) -> tuple[Array, float]:
        """log W(bx) for each next symbol x over the heads with a law, and the log of their sum.

        Returns: (257,) float64, nats; nats.
        """
        heads = [head for head in self.tree.heads if self._counts(head.node)]
        shift = max((self.log_mass[head.node] for head in heads), default=-math.inf)
        if shift == -math.inf:
            return np.full(NUM_SYMBOLS, -math.inf), -math.inf
        lowest = min(self.log_mass[head.node] for head in heads)
        if lowest < shift - LARGEST_SPREAD or any(self.laws[head.node].is_wide for head in heads):
            logs = self._wide_log_masses(heads)
            return logs, log_sum(logs)
        masses = self._masses(heads, shift)
        total = float(np.add.reduce(masses))
        logs = np.full(NUM_SYMBOLS, -math.inf)
        np.log(masses, out=logs, where=masses != 0.0)
        logs += shift
        return logs, math.log(total) + shift if total else -math.inf

    def log_total(self) -> float:
        """The second of `log_masses` alone."""
        heads = [head for head in self.tree.heads if self._counts(head.node)]
        reach = [self.log_mass[node] + self.laws[node].log_reach(prefix) for node, prefix in heads]
        return log_sum_of(reach)

    def _masses(self, heads: list[Head], shift: float) -> Array:
        """(257,) W(bx) divided by exp(shift)."""
        trie, end = self.tree.vocabulary.trie, 0.0
        symbols, masses = list[NDArray[np.int64]](), list[Array]()
        for node, prefix in heads:
            law, log_mass = self.laws[node], self.log_mass[node] - shift
            symbols.append(trie.symbol[trie.children(prefix)])
            masses.append(law.child_weights(prefix) * math.exp(log_mass + law.log_scale))
            if prefix == ROOT:
                end += math.exp(log_mass + law.log_end)
        by_symbol: Array = np.bincount(  # type: ignore[assignment]  # float64 where weights are
            np.concatenate(symbols), np.concatenate(masses), NUM_SYMBOLS
        )
        by_symbol[END_SYMBOL] = end
        return by_symbol

    def _wide_log_masses(self, heads: list[Head]) -> Array:
        """The same where sums on one scale could lose small terms."""
        trie, masses = self.tree.vocabulary.trie, np.full(NUM_SYMBOLS, -math.inf)
        for node, prefix in heads:
            law, log_mass = self.laws[node], self.log_mass[node]
            symbols = trie.symbol[trie.children(prefix)]
            masses[symbols] = np.logaddexp(masses[symbols], log_mass + law.log_children(prefix))
            if prefix == ROOT:
                masses[END_SYMBOL] = np.logaddexp(masses[END_SYMBOL], log_mass + law.log_end)
        return masses

    def _counts(self, node: int) -> bool:
        return node in self.laws and self.log_mass[node] != -math.inf

    def log_probs(self) -> Array:
        """log q(x | b) over the 257 symbols: float64, normalised to within 1e-12.

        Raises ValueError when nothing can follow (all mass leaked).
        """
        masses, total = self.log_masses()
        if total == -math.inf:
            raise ValueError(f"no token can follow {bytes(self.tree.text[-16:])!r}")
        return masses - total

    def _weigh(self, node: int) -> None:
        parent = self.tree.parent[node]
        if parent in self.laws:
            step = self.laws[parent].of_token(self.tree.token[node])
            self.log_mass[node] = self.log_mass[parent] + step
