"""Log-probabilities of all bytes of a text from one pass over its token tree."""

import math
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from .byte_marginals import TokenLogProbs
from .byte_vocabulary import ByteVocabulary
from .log_sums import Array, log_sum
from .node_law import Mode, node_law
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
    grown = score_tree(vocabulary, text)
    sums = _sums_along(vocabulary, grown, token_log_probs, mode, chunk_size)
    places = range(len(text))
    reached = [_log_sum_over(grown.heads[at], sums.next_byte, sums.log_mass) for at in places]
    ends = [sums.log_mass[new] + sums.log_end[new] for new in grown.new]
    totals = [
        float(np.logaddexp(log_sum(end), _log_sum_over(heads, sums.beyond, sums.log_mass)))
        for heads, end in zip(grown.heads, ends, strict=True)
    ]
    log_probs: Array = np.array([*reached, log_sum(ends[-1])]) - np.array(totals)
    return log_probs


@dataclass(frozen=True, slots=True)
class _Sums:
    """What is read of the nodes' distributions, given the node unless its mass is meant."""

    log_mass: Array
    """(nodes,) of the path to each node."""
    log_end: Array
    """(nodes,) of ending there."""
    beyond: dict[Head, float]
    """Of all tokens that reach beyond the text at a head."""
    next_byte: dict[Head, float]
    """Of those that reach beyond it with the byte that does follow."""


def _sums_along(
    vocabulary: ByteVocabulary,
    grown: ScoreTree,
    token_log_probs: TokenLogProbs,
    mode: Mode,
    chunk_size: int,
) -> _Sums:
    tree, num_nodes = grown.tree, len(grown.tree)
    steps, children = _head_steps(grown), _children(tree)
    sums = _Sums(np.zeros(num_nodes), np.full(num_nodes, -math.inf), {}, {})
    for start in range(0, num_nodes, chunk_size):
        nodes = range(start, min(start + chunk_size, num_nodes))
        paths = [(*vocabulary.start_token_ids, *tree.path(node)) for node in nodes]
        for node, row in zip(nodes, np.asarray(token_log_probs(paths)), strict=True):
            law = node_law(vocabulary, grown.standing[node], row, mode)
            sums.log_end[node] = law.log_end
            for prefix, longer in steps[node]:
                sums.beyond[Head(node, prefix)] = law.log_beyond(prefix)
                within = law.log_within(longer) if longer >= 0 else -math.inf
                sums.next_byte[Head(node, prefix)] = within
            for child in children[node]:
                step = law.of_token(tree.token[child])
                sums.log_mass[child] = sums.log_mass[node] + step
    return sums


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


def _log_sum_over(heads: list[Head], sums: dict[Head, float], log_mass: Array) -> float:
    return log_sum(np.array([log_mass[head.node] + sums[head] for head in heads]))
