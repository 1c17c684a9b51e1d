"""Log-probabilities of all bytes of a text from one pass over its token tree."""

import math
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from .byte_marginals import TokenLogProbs
from .byte_trie import ROOT
from .byte_vocabulary import ByteVocabulary
from .log_sums import Array, log_sum_of
from .node_law import Mode, NodeLaw, node_law
from .token_tree import ROOT_NODE, Head, TokenTree
from .viability import Standing


@dataclass(frozen=True, slots=True)
class ScoreTree:
    """The union of the trees of all prefixes of a text: about one node per byte.

    heads[i] are those of the first i bytes; new[i] the nodes among them that end there. standing
    holds all nodes. Only sums along the text are ever read from a node's distribution, about ten
    numbers, so distributions need not be kept.
    """

    tree: TokenTree
    heads: list[list[Head]]
    new: list[list[int]]
    standing: list[Standing]


def score_tree(vocabulary: ByteVocabulary, text: bytes) -> ScoreTree:
    """Grow the tree over `text`. Raises ValueError at a byte that cannot follow."""
    tree = TokenTree(vocabulary)
    grown = ScoreTree(tree, [list(tree.heads)], [[ROOT_NODE]], [tree.standing[ROOT_NODE]])
    for byte in text:
        grown.new.append(tree.append(byte))
        grown.heads.append(list(tree.heads))
        grown.standing.extend(tree.standing[node] for node in grown.new[-1])
    return grown


def byte_log_probs(
    vocabulary: ByteVocabulary,
    text: bytes,
    token_log_probs: TokenLogProbs,
    *,
    mode: Mode = "masked",
    chunk_size: int = 64,
) -> Array:
    """log q(byte | bytes before it) of each byte of `text`, and of the end behind it, in nats.

    token_log_probs: asked once per `chunk_size` nodes. Returns: (len(text) + 1,) float64, equal to
    that of `ByteMarginals` byte by byte. Raises ValueError at a byte that cannot follow.
    """
    sums = PathSums(score_tree(vocabulary, text))
    tree, standing = sums.grown.tree, sums.grown.standing
    for start in range(0, len(tree), chunk_size):
        nodes = range(start, min(start + chunk_size, len(tree)))
        paths = [(*vocabulary.start_token_ids, *tree.path(node)) for node in nodes]
        for node, row in zip(nodes, np.asarray(token_log_probs(paths)), strict=True):
            sums.add(node, node_law(vocabulary, standing[node], row, mode))
    log_probs: Array = np.append(sums.log_probs(), sums.log_end())
    return log_probs


class PathSums:
    """What is read of the laws of a score tree's nodes, and the log-probabilities that it gives.

    Laws may come in any order in which parents are before children, and some may never come: then
    only `bounds` are known. For them, the nodes without a law are taken in *groups*, each below one
    node whose mass is known.
    """

    def __init__(self, grown: ScoreTree) -> None:
        self.grown = grown
        num_nodes = len(grown.tree)
        self._steps, self._children = _head_steps(grown), _children(grown.tree)
        self._log_mass = [0.0, *[math.nan] * (num_nodes - 1)]
        self._log_end = [math.nan] * num_nodes
        self._beyond: dict[Head, float] = {}
        self._next_byte: dict[Head, float] = {}

    def add(self, node: int, law: NodeLaw) -> None:
        """Keep the sums along the text of a node's law; its parent's must be known."""
        self._log_end[node] = law.log_end
        for prefix, longer in self._steps[node]:
            self._beyond[Head(node, prefix)] = law.log_beyond(prefix)
            within = law.log_within(longer) if longer >= 0 else -math.inf
            self._next_byte[Head(node, prefix)] = within
        for child in self._children[node]:
            step = law.of_token(self.grown.tree.token[child])
            self._log_mass[child] = self._log_mass[node] + step

    def log_probs(self) -> Array:
        """(bytes,) float64: log q of each byte of the text; all laws must be known."""
        return np.array([self._parts(at).log_share() for at in range(len(self.grown.tree.text))])

    def bounds(self, *, is_upper: bool) -> Array:
        """(bytes,) float64: an upper or lower bound on `log_probs` from the laws that are known."""
        places = range(len(self.grown.tree.text))
        return np.array([self._bound(at, is_upper=is_upper) for at in places])

    def log_end(self) -> float:
        """log q of the end behind the text."""
        last = len(self.grown.tree.text)
        ends = [self._log_mass[node] + self._log_end[node] for node in self.grown.new[last]]
        return log_sum_of(ends) - log_sum_of(self._parts(last).total)

    def _parts(self, at: int) -> "_Parts":
        parts = _Parts([], [])
        for head in self.grown.heads[at]:
            if head in self._beyond:
                log_mass = self._log_mass[head.node]
                parts.reached.append(log_mass + self._next_byte[head])
                parts.total.append(log_mass + self._beyond[head])
                if head.prefix == ROOT:
                    parts.total.append(log_mass + self._log_end[head.node])
        return parts

    def _bound(self, at: int, *, is_upper: bool) -> float:
        """A group has at most its mass, exactly that where it is one new node; no more of it can
        reach the next byte than this byte, and then none of the rest counts either."""
        parts, new = self._parts(at), self.grown.new[at]
        for node, goes_on in self._groups(at).items():
            if not is_upper:
                parts.total.append(self._log_mass[node])
            elif goes_on:
                parts.total.append(self._log_mass[node])
                parts.reached.append(self._log_mass[node])
            elif node in new:
                parts.total.append(self._log_mass[node])
        return parts.log_share()

    def _groups(self, at: int) -> dict[int, bool]:
        """Nodes with a mass but no law that heads hang on: whether the next byte goes on there."""
        groups: dict[int, bool] = {}
        tree = self.grown.tree
        for head in self.grown.heads[at]:
            if head in self._beyond:
                continue
            node = head.node
            while math.isnan(self._log_mass[node]):
                node = tree.parent[node]
            longer = tree.vocabulary.trie.child(head.prefix, tree.text[at])
            groups[node] = groups.get(node, False) or longer >= 0
        return groups


@dataclass(frozen=True, slots=True)
class _Parts:
    """Log masses of what reaches the next byte, and of all that reaches beyond a text."""

    reached: list[float]
    total: list[float]

    def log_share(self) -> float:
        """log of a probability; a text without any gives every byte none."""
        total = log_sum_of(self.total)
        return -math.inf if total == -math.inf else log_sum_of(self.reached) - total


def _head_steps(grown: ScoreTree) -> list[list[tuple[int, int]]]:
    """By node: the trie nodes that it passes as a head, each with the one of the next byte."""
    trie, text = grown.tree.vocabulary.trie, grown.tree.text
    steps: list[list[tuple[int, int]]] = [[] for _ in range(len(grown.tree))]
    for heads, byte in zip_longest(grown.heads, text):
        for node, prefix in heads:
            steps[node].append((prefix, -1 if byte is None else trie.child(prefix, byte)))
    return steps


def _children(tree: TokenTree) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(len(tree))]
    for node in range(1, len(tree)):
        children[tree.parent[node]].append(node)
    return children
