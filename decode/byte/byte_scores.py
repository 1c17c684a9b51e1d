"""Log-probabilities of all bytes of a text from one pass over its token tree."""

import math
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np
from numpy.typing import NDArray

from .byte_marginals import TokenLogProbs
from .byte_trie import ROOT, ByteTrie
from .byte_vocabulary import ByteVocabulary
from .log_sums import Array, log_sum_of, segment_log_sums
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
        self._path = path = _head_path(grown)
        self._children = _children(grown.tree)
        self._log_mass = [0.0, *[math.nan] * (num_nodes - 1)]
        self._log_end = np.full(num_nodes, math.nan)
        self._has_law = np.zeros(num_nodes, np.bool_)
        self._logs = np.empty((len(path.node), 2))
        """Of the steps in the order of `path.by_node`: what reaches the next byte, and all."""

    def add(self, node: int, law: NodeLaw) -> None:
        """Keep the sums along the text of a node's law; its parent's must be known."""
        self._has_law[node], self._log_end[node] = True, law.log_end
        steps = slice(self._path.first[node], self._path.first[node + 1])
        self._logs[steps] = law.log_intervals(self._path.intervals[steps])
        for child in self._children[node]:
            step = law.of_token(self.grown.tree.token[child])
            self._log_mass[child] = self._log_mass[node] + step

    def log_probs(self) -> Array:
        """(bytes,) float64: log q of each byte of the text; all laws must be known."""
        reached, total = self._known()
        return _log_shares(reached[:-1], total[:-1])

    def bounds(self, *, is_upper: bool) -> Array:
        """(bytes,) float64: an upper or lower bound on `log_probs` from the laws that are known.

        A group has at most its mass, exactly that where it is one new node; no more of it can
        reach the next byte than this byte, and then none of the rest counts either.
        """
        reached, total = self._known()
        for at, groups in self._groups().items():
            more, all_of_it = [float(reached[at])], [float(total[at])]
            for node, goes_on in groups.items():
                if is_upper and goes_on:
                    more.append(self._log_mass[node])
                if not is_upper or goes_on or node in self.grown.new[at]:
                    all_of_it.append(self._log_mass[node])
            reached[at], total[at] = log_sum_of(more), log_sum_of(all_of_it)
        return _log_shares(reached[:-1], total[:-1])

    def log_end(self) -> float:
        """log q of the end behind the text."""
        last = len(self.grown.tree.text)
        ends = [self._log_mass[node] + self._log_end[node] for node in self.grown.new[last]]
        return log_sum_of(ends) - float(self._known()[1][last])

    def _known(self) -> tuple[Array, Array]:
        """(bytes + 1,) float64 each, over the heads with a law: log masses of what reaches the
        next byte, and of all that reaches beyond the text.
        """
        path = self._path
        logs = np.empty_like(self._logs)
        logs[path.by_node] = self._logs
        ends = np.where(path.prefix == ROOT, self._log_end[path.node], -math.inf)
        mass = np.array(self._log_mass)[path.node]
        is_known = self._has_law[path.node]
        reached = np.where(is_known, mass + logs[:, 0], -math.inf)
        total = np.where(is_known, mass + np.logaddexp(logs[:, 1], ends), -math.inf)
        return segment_log_sums(reached, path.starts), segment_log_sums(total, path.starts)

    def _groups(self) -> dict[int, dict[int, bool]]:
        """By place: nodes with a mass but no law that heads hang on, and whether the next byte
        goes on there."""
        path, groups = self._path, dict[int, dict[int, bool]]()
        parent, log_mass = self.grown.tree.parent, self._log_mass
        unknown = ~self._has_law[path.node]
        columns = (path.node[unknown], path.place[unknown], path.longer[unknown] >= 0)
        for node, place, goes_on in zip(*(column.tolist() for column in columns), strict=True):
            while math.isnan(log_mass[node]):
                node = parent[node]
            here = groups.setdefault(place, {})
            here[node] = here.get(node, False) or goes_on
        return groups


@dataclass(frozen=True, slots=True)
class _HeadPath:
    """The heads of all places in order, one *step* each; int64.

    node, prefix: of the head. longer: the trie node behind the next byte, -1 for none. place: how
    many bytes before it. starts: first step of each place. by_node: the steps sorted by node, last
    place first. intervals: (steps, 2, 2) rows of the trie in that order: those with the next byte,
    and all that are longer than the prefix. first: by node, where its steps begin there.
    """

    node: NDArray[np.int64]
    prefix: NDArray[np.int64]
    longer: NDArray[np.int64]
    place: NDArray[np.int64]
    starts: NDArray[np.int64]
    by_node: NDArray[np.int64]
    intervals: NDArray[np.int64]
    first: list[int]


def _head_path(grown: ScoreTree) -> _HeadPath:
    trie, counts = grown.tree.vocabulary.trie, np.array([len(heads) for heads in grown.heads])
    every = chain.from_iterable(chain.from_iterable(grown.heads))
    node, prefix = np.fromiter(every, np.int64).reshape(-1, 2).T
    longer = [
        -1 if byte is None else trie.child(head.prefix, byte)
        for heads, byte in zip_longest(grown.heads, grown.tree.text)
        for head in heads
    ]
    by_node = np.lexsort((-np.arange(len(node)), node))
    going_on = np.array(longer, np.int64)
    return _HeadPath(
        node=node,
        prefix=prefix,
        longer=going_on,
        place=np.repeat(np.arange(len(counts)), counts),
        starts=np.cumsum(counts) - counts,
        by_node=by_node,
        intervals=_intervals(trie, prefix[by_node], going_on[by_node]),
        first=np.searchsorted(node[by_node], np.arange(len(grown.tree) + 1)).tolist(),
    )


def _intervals(
    trie: ByteTrie, prefix: NDArray[np.int64], longer: NDArray[np.int64]
) -> NDArray[np.int64]:
    low = trie.low[prefix] + trie.num_ends[prefix]
    goes_on = longer >= 0
    within_low, within_high = (np.where(goes_on, x[longer], low) for x in (trie.low, trie.high))
    bounds = np.stack((within_low, within_high, low, trie.high[prefix]), 1)
    return bounds.astype(np.int64).reshape(-1, 2, 2)


def _log_shares(reached: Array, total: Array) -> Array:
    """Logs of probabilities; a text without any gives every byte none."""
    shares: Array = np.where(total == -math.inf, -math.inf, reached - total)
    return shares


def _children(tree: TokenTree) -> list[list[int]]:
    children: list[list[int]] = [[] for _ in range(len(tree))]
    for node in range(1, len(tree)):
        children[tree.parent[node]].append(node)
    return children
