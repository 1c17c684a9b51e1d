"""Laws of the tokens behind the nodes of a tree, and the law of the next byte that they give."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..tokenizer.trie import ROOT, ByteTrie
from ..tokenizer.viability import ViabilityState
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from .token_tree import ROOT_NODE, TokenTree

Array = NDArray[np.float64]


def log_sum(values: Array) -> float:
    """log of the sum of exp(values), -inf for none; values: (n,) float64, -inf allowed."""
    top = float(values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(float(np.exp(values - top).sum()))


def segment_log_sums(values: Array, starts: NDArray[np.int64]) -> Array:
    """`log_sum` of consecutive segments.

    values: (n,) float64. starts: (k,) ascending, the first 0, all below n. Returns: (k,) float64.
    """
    top = np.maximum.reduceat(values, starts)
    shift = np.where(top == -math.inf, 0.0, top)
    lengths = np.diff(starts, append=len(values))
    sums = np.add.reduceat(np.exp(values - np.repeat(shift, lengths)), starts)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + shift
    return logs


# N nodes, V tokens of the vocabulary, in order: `ordered_tokens`, the rows of the trie first.


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """Log-probabilities, in nats, of what may follow a node: all sum to one (-inf: a dead end).

    log_probs: (V,) float64 in order, -inf where not allowed. first_bytes: float64, their sums by
    first byte. log_end: of ending the text, -inf where it may not. masked_mass: share of the
    model's mass that was on other tokens, 0.0 where nothing is left or the logits are broken.
    """

    trie: ByteTrie
    log_probs: Array
    first_bytes: Array
    log_end: float
    masked_mass: float

    def of_token(self, token: int) -> float:
        """Log-probability of one token."""
        return float(self.log_probs[self.trie.row_of[token]])

    def log_children(self, prefix: int) -> Array:
        """Log-probability of all that starts with a trie node's prefix and is longer, by next byte:
        one entry for each child of the trie node, float64.
        """
        if prefix == ROOT:
            return self.first_bytes
        low, high = self.trie.longer(prefix)
        return segment_log_sums(
            self.log_probs[low:high], self.trie.start[self.trie.children(prefix)]
        )

    def log_reach(self, prefix: int) -> float:
        """The sum of `log_children`, and the end's where the prefix is empty."""
        logs = self.log_children(prefix)
        return log_sum(np.append(logs, self.log_end) if prefix == ROOT else logs)

    def likely(self, prefix: int, least: float) -> list[int]:
        """Rows of the tokens that start with a trie node's prefix, are longer and have a
        log-probability of `least` or more.
        """
        low, high = self.trie.longer(prefix)
        rows: list[int] = (np.flatnonzero(self.log_probs[low:high] >= least) + low).tolist()
        return rows


def node_laws(
    vocabulary: ByteVocabulary,
    states: Sequence[ViabilityState],
    logits: Tensor,
) -> Iterator[NodeLaw]:
    """Restrict next-token distributions to what may follow each node, and renormalize them.

    logits: (N, at least vocab_size) logits or log-probabilities, any float dtype, -inf = banned.
    Sums are float64, each on the scale of its own largest term. All stop tokens count as one end.
    A row with NaN or +inf gives a law of NaN.
    """
    # One copy from the device, then row by row: each finds the memory of the one before in the
    # cache, where tiles of many would leave it.
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    allowed = allowed_in_order(vocabulary, states)
    for row, kept in zip(scores.numpy(force=True), allowed, strict=True):
        yield _node_law(vocabulary, row[vocabulary.ordered_tokens].astype(np.float64), kept)


def allowed_in_order(
    vocabulary: ByteVocabulary, states: Sequence[ViabilityState]
) -> NDArray[np.bool_]:
    """(N, V) bool, columns as in `ordered_tokens`: what may follow, stop tokens too."""
    num_rows = len(vocabulary.trie.tokens)
    ends = slice(num_rows, num_rows + len(vocabulary.stop_token_ids))
    allowed = np.zeros((len(states), vocabulary.vocab_size), np.bool_)
    for state, row in zip(states, allowed, strict=True):
        row[:num_rows] = vocabulary.viability.allowed(state)
        row[ends] = vocabulary.viability.may_end(state)
    return allowed


def _node_law(vocabulary: ByteVocabulary, scores: Array, allowed: NDArray[np.bool_]) -> NodeLaw:
    """scores, allowed: (V,) in order."""
    # 1. What may not follow has no probability.
    trie, num_rows = vocabulary.trie, len(vocabulary.trie.tokens)
    log_probs = np.where(allowed, scores, -math.inf)
    # 2. What is left, by first byte, and the end; and what was taken.
    first_bytes = segment_log_sums(log_probs[:num_rows], trie.start[trie.children(ROOT)])
    log_end = log_sum(log_probs[num_rows:])
    log_kept = log_sum(np.append(first_bytes, log_end))
    log_masked = log_sum(scores[~allowed])
    log_all = float(np.logaddexp(log_kept, log_masked))
    # 3. Divide by what is left. In a dead end there is nothing to be divided, and a broken logit
    #    breaks the whole law, even that of a token that may not follow.
    log_total = 0.0 if log_kept == -math.inf else log_kept
    if not log_all < math.inf:
        log_total = math.nan
    return NodeLaw(
        trie=trie,
        log_probs=log_probs - log_total,
        first_bytes=first_bytes - log_total,
        log_end=log_end - log_total,
        masked_mass=math.exp(log_masked - log_all) if math.isfinite(log_kept + log_all) else 0.0,
    )


class TreeMarginals:
    """Masses of a growing tree's heads: W(bx) is summed over the heads whose law is known.

    A node's mass is the probability of its tokens behind `base`. It is known once its parent's law
    is. A head whose law is not known is left out of the sums.
    """

    def __init__(self, tree: TokenTree, base: int = ROOT_NODE) -> None:
        """base: an ancestor of all heads; other nodes are given relative to it."""
        self.tree = tree
        self.laws: dict[int, NodeLaw] = {}
        self.log_mass = {base: 0.0}

    def append(self, byte: int) -> None:
        """Grow the tree. Raises ValueError if `byte` cannot follow."""
        for node in self.tree.append(byte):
            self._weigh(node)
        heads = {head.node for head in self.tree.heads}
        kept = heads.union(self.missing())
        self.laws = {node: law for node, law in self.laws.items() if node in heads}
        self.log_mass = {node: mass for node, mass in self.log_mass.items() if node in kept}

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
        missing: set[int] = set()
        for head in self.tree.heads:
            node = head.node
            if node not in self.laws:
                missing.add(node)
                while node not in self.log_mass:
                    node = self.tree.parent[node]
                    missing.add(node)
        return sorted(missing)

    def log_masses(self) -> tuple[Array, float]:
        """log W(bx) for each next symbol x over the heads with a law, and the log of their sum.

        Returns: (257,) float64, nats; nats.
        """
        trie, masses = self.tree.vocabulary.trie, np.full(NUM_SYMBOLS, -math.inf)
        for node, prefix in self.tree.heads:
            if node not in self.laws or self.log_mass[node] == -math.inf:
                continue
            law, log_mass = self.laws[node], self.log_mass[node]
            symbols = trie.symbol[trie.children(prefix)]
            masses[symbols] = np.logaddexp(masses[symbols], log_mass + law.log_children(prefix))
            if prefix == ROOT:
                masses[END_SYMBOL] = np.logaddexp(masses[END_SYMBOL], log_mass + law.log_end)
        return masses, log_sum(masses)

    def _weigh(self, node: int) -> None:
        parent = self.tree.parent[node]
        if parent in self.laws:
            step = self.laws[parent].of_token(self.tree.token[node])
            self.log_mass[node] = self.log_mass[parent] + step
