"""Log-probabilities of all bytes of a text from one pass over its token tree."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from .byte_marginals import TokenLogProbs
from .byte_trie import ROOT
from .byte_vocabulary import ByteVocabulary
from .log_sums import Array, log_sum
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
        self._log_mass = np.full(num_nodes, math.nan)
        self._log_mass[ROOT_NODE] = 0.0
        self._log_end = np.full(num_nodes, math.nan)
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
        return np.array([self._step(at, self.grown.heads[at]) for at in self._places()])

    def bounds(self, *, is_upper: bool) -> Array:
        """(bytes,) float64: an upper or lower bound on `log_probs` from the laws that are known."""
        return np.array([self._bound(at, is_upper=is_upper) for at in self._places()])

    def log_end(self) -> float:
        """log q of the end behind the text."""
        last = len(self.grown.tree.text)
        return self._log_end_mass(last) - self._log_total(last, self.grown.heads[last])

    def _places(self) -> range:
        return range(len(self.grown.tree.text))

    def _step(self, at: int, heads: list[Head]) -> float:
        return _log_share(self._log_sum(heads, self._next_byte), self._log_total(at, heads))

    def _bound(self, at: int, *, is_upper: bool) -> float:
        """A group has at most its mass, exactly that where it is one new node; no more of it can
        reach the next byte than this byte, and then none of the rest counts either."""
        heads = [head for head in self.grown.heads[at] if self._is_known(head.node)]
        if len(heads) == len(self.grown.heads[at]):
            return self._step(at, heads)
        reached, total = self._log_sum(heads, self._next_byte), self._log_total(at, heads)
        groups = self._groups(at)
        if not is_upper:
            return _log_share(reached, np.logaddexp(total, self._log_sum_of_masses(groups)))
        going = self._log_sum_of_masses(node for node, goes_on in groups.items() if goes_on)
        new = set(self.grown.new[at])
        ending = self._log_sum_of_masses(
            node for node, goes_on in groups.items() if node in new and not goes_on
        )
        rest = np.logaddexp(total, ending)
        return _log_share(np.logaddexp(reached, going), np.logaddexp(rest, going))

    def _groups(self, at: int) -> dict[int, bool]:
        """Nodes with a mass but no law that heads hang on: whether the next byte goes on there."""
        groups: dict[int, bool] = {}
        tree = self.grown.tree
        for node, prefix in self.grown.heads[at]:
            if self._is_known(node):
                continue
            longer = tree.vocabulary.trie.child(prefix, tree.text[at])
            while math.isnan(self._log_mass[node]):
                node = tree.parent[node]
            groups[node] = groups.get(node, False) or longer >= 0
        return groups

    def _is_known(self, node: int) -> bool:
        return Head(node, ROOT) in self._beyond

    def _log_total(self, at: int, heads: list[Head]) -> float:
        beyond = self._log_sum(heads, self._beyond)
        return float(np.logaddexp(self._log_end_mass(at), beyond))

    def _log_end_mass(self, at: int) -> float:
        new = [node for node in self.grown.new[at] if self._is_known(node)]
        return log_sum(self._log_mass[new] + self._log_end[new])

    def _log_sum(self, heads: list[Head], sums: dict[Head, float]) -> float:
        return log_sum(np.array([self._log_mass[head.node] + sums[head] for head in heads]))

    def _log_sum_of_masses(self, nodes: Iterable[int]) -> float:
        return log_sum(self._log_mass[list(nodes)])


def _log_share(part: float, total: float) -> float:
    """log of a probability; a text without any gives every byte none."""
    return -math.inf if total == -math.inf else float(part - total)


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
