"""One text of a batch at byte level: its tree, what the model holds of it, and its next byte."""

import math

import torch
from torch import Tensor

from .byte_evaluation import ByteCounts, ByteEvaluation
from .log_sums import Array, log_sum
from .node_law import NodeLaw
from .token_tree import ROOT_NODE, TokenTree
from .tree_cache import TreeCache, TreeForward
from .tree_marginals import TreeMarginals

MAX_DEAD_SLOTS = 64
"""Slots of dead nodes that are tolerated, and a quarter of all."""


class ByteRow:
    """A growing text: laws of the nodes that its next byte depends on, hidden states of the others.

    `hidden` (D,) by node: computed, law not asked for yet. `is_over`: the text has ended, so
    nothing follows it.
    """

    def __init__(
        self, tree: TokenTree, cache: TreeCache, counts: ByteCounts, evaluation: ByteEvaluation
    ) -> None:
        """tree: grown over the prompt; its trunk and all its heads have slots in `cache`."""
        self.tree, self.cache, self.counts, self.evaluation = tree, cache, counts, evaluation
        trunk = tree.trunk()
        self.marginals = TreeMarginals(tree, trunk[-1] if trunk else ROOT_NODE)
        self.hidden: dict[int, Tensor] = {}
        self.is_over = False
        self._guessed: set[int] = set()
        self._num_seen = 0
        self._seen = torch.zeros(tree.vocabulary.vocab_size, dtype=torch.bool)
        self._seen[list(tree.vocabulary.start_token_ids)] = True

    def append(self, byte: int) -> None:
        """Grow the text; a byte that cannot follow (the end, say) ends it."""
        if self.is_over:
            return
        try:
            self.marginals.append(byte)
        except ValueError:
            self.is_over = True

    def wanted(self) -> list[int]:
        """Nodes whose laws the next byte asks for, parents first."""
        return [] if self.is_over else self.marginals.missing()

    def take(self, nodes: list[int], hidden: Tensor) -> None:
        """Keep the hidden states (len(nodes), D) of computed nodes until their law is asked for."""
        self.hidden.update(zip(nodes, hidden, strict=True))

    def forward(self, wanted: list[int]) -> TreeForward | None:
        """The forward that the laws of `wanted` need, with guesses; None if all is computed."""
        missing = self.cache.missing(wanted)
        if not missing:
            return None
        self.counts.num_forwards += 1
        self.counts.num_nodes += len(missing)
        return self.cache.add(missing)

    def foresee(self, continuation: bytes) -> list[int]:
        """Nodes that a given continuation will need, without slots yet."""
        nodes = [] if self.is_over else self.tree.guess(continuation)
        return [node for node in nodes if node not in self.cache]

    def add_law(self, node: int, law: NodeLaw) -> None:
        """Learn what follows a node."""
        self.hidden.pop(node, None)
        self.marginals.add_law(node, law)

    def log_probs(self) -> Array:
        """log q of the next symbol: (257,) float64; -inf where nothing follows, NaN where broken.

        A text to which the laws give no probability at all stands for its newest node alone.
        """
        masses = self.marginals.log_masses()
        if not self.is_over and log_sum(masses) == -math.inf:
            self.marginals.restart()
            masses = self.marginals.log_masses()
        total = log_sum(masses)
        if self.is_over or total == -math.inf:
            masses.fill(-math.inf)
            return masses
        return masses - total

    def seen(self, node: int) -> Tensor:
        """(V,) bool: the tokens of a node's path, start tokens included."""
        trunk = self.tree.trunk()
        self._seen[[self.tree.token[at] for at in trunk[self._num_seen :]]] = True
        self._num_seen = len(trunk)
        seen = self._seen.clone()
        while self.tree.depth[node] > len(trunk):
            seen[self.tree.token[node]] = True
            node = self.tree.parent[node]
        return seen

    def compact(self) -> tuple[int, list[int]] | None:
        """What the model's cache should keep (TreeCache.compact); None while few slots are dead."""
        limit = min(MAX_DEAD_SLOTS, self.cache.num_slots // 4)
        if self.cache.num_dead <= limit:
            return None
        self.hidden = {n: state for n, state in self.hidden.items() if self.tree.is_alive(n)}
        return self.cache.compact()
