"""Token distributions after the nodes of a tree, and the next byte's that follows from them."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..tokenizer.trie import ROOT
from ..tokenizer.viability import ViabilityState
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from .token_tree import ROOT_NODE, TokenTree

Array = NDArray[np.float64]
Row = NDArray[np.bool_]


def log_sum(values: Array) -> float:
    """log of the sum of exp(values), -inf for none; values: (n,) float64, -inf allowed."""
    top = float(values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(float(np.exp(values - top).sum()))


# N nodes, V tokens of the vocabulary, in order: `ordered_tokens`, the rows of the trie first.

FAINT = math.exp(-80.0)
"""Shares below it are summed as logarithms: float32 has all digits of a share down to e^-87."""

LEAST_SUM = 1e-20
"""A larger sum of shares misses nothing in its faint terms: e^-80 is 1e-15 of it."""


class NodeDistribution:
    """Log-probabilities, in nats, of what may follow a node: all sum to one (-inf: a dead end).

    Every sum is one of the scores' shares, in their dtype: float32 costs a probability some 1e-7 of
    itself. first_bytes: float64, sums by first byte. log_end: of ending the text, -inf where it may
    not. masked_mass: share of the model's mass that was on other tokens; 0.0 where nothing is left
    or the logits are broken.
    """

    def __init__(
        self, vocabulary: ByteVocabulary, scores: Tensor, shares: Tensor, allowed: Row
    ) -> None:
        """scores: (V,) logits in order, float32 or float64. shares: their softmax, on the CPU; it
        is written to. allowed: (V,) bool, in order."""
        self.trie, num_rows = vocabulary.trie, len(vocabulary.trie.tokens)
        # 1. Each token's share of the model's mass. A NaN or +inf breaks all of them, even that of
        #    a token that may not follow; where all scores are -inf there is no mass.
        self._shares = shares.numpy()
        if math.isnan(self._shares[0]) and float(scores.max()) == -math.inf:
            self._shares[:] = 0.0
        # 2. What may not follow has no share. Shares too small for their digits count by their
        #    logarithms, in the order of rows: seldom any, as -inf is not.
        self._faint, self._faint_logs = np.array([], np.int64), np.array([])
        if float(self._shares.min()) < FAINT:
            values = scores.cpu().numpy()
            is_faint = (self._shares < FAINT) & (values > -math.inf)
            self._faint = np.flatnonzero(is_faint & allowed)
        if len(self._faint):
            likeliest = int(self._shares.argmax())
            log_all = float(values[likeliest]) - math.log(self._shares[likeliest])
            self._faint_logs = values[self._faint].astype(np.float64) - log_all
            self._shares[self._faint] = 0.0
        self._shares *= allowed
        # 3. What is left, by first byte, and the end. In a dead end there is nothing to divide by.
        self._log_total = 0.0
        first_bytes = self._log_sums(0, num_rows, self.trie.start[self.trie.children(ROOT)])
        log_end = float(self._log_sums(num_rows, len(allowed), np.array([0]))[0])
        log_kept, self.masked_mass = log_sum(np.append(first_bytes, log_end)), 0.0
        if log_kept != -math.inf:
            self._log_total, self.masked_mass = log_kept, max(0.0, 1.0 - math.exp(log_kept))
        self.first_bytes = first_bytes - self._log_total
        self.log_end = log_end - self._log_total

    def of_token(self, token: int) -> float:
        """Log-probability of one token."""
        row = self.trie.row_of[token]
        if (share := float(self._shares[row])) > 0.0:
            return math.log(share) - self._log_total
        return float(self._log_sums(row, row + 1, np.array([0]))[0])

    def log_children(self, prefix: int) -> Array:
        """Log-probability of all that starts with a trie node's prefix and is longer, by next byte:
        one entry for each child of the trie node, float64."""
        if prefix == ROOT:
            return self.first_bytes
        starts = self.trie.start[self.trie.children(prefix)]
        return self._log_sums(*self.trie.longer(prefix), starts)

    def log_reach(self, prefix: int) -> float:
        """The sum of `log_children`, and the end's where the prefix is empty."""
        logs = self.log_children(prefix)
        return log_sum(np.append(logs, self.log_end) if prefix == ROOT else logs)

    def likely(self, prefix: int, least: float) -> list[int]:
        """Rows of the tokens that start with a trie node's prefix, are longer and have a
        log-probability of `least` or more."""
        (low, high), least = self.trie.longer(prefix), least + self._log_total
        share = max(math.exp(least), FAINT)
        rows: list[int] = (np.flatnonzero(self._shares[low:high] >= share) + low).tolist()
        faint: list[int] = self._faint[self._faint_logs >= least].tolist()
        return rows + [row for row in faint if low <= row < high]

    def _log_sums(self, low: int, high: int, starts: NDArray[np.int64]) -> Array:
        """Log-probabilities of consecutive segments of the rows from `low` to `high`.

        starts: (k,) ascending, the first 0, all below high - low. Returns: (k,) float64.
        """
        # numpy sums pairwise, so that many shares lose no more digits than a few.
        sums = np.add.reduceat(self._shares[low:high], starts).astype(np.float64)
        with np.errstate(divide="ignore"):
            logs = np.log(sums)
        if len(self._faint):  # which small sums would miss
            ends = np.append(starts[1:], high - low) + low
            first, last = np.searchsorted(self._faint, (starts + low, ends))
            for segment in np.flatnonzero((first < last) & (sums < LEAST_SUM)):
                log_faint = log_sum(self._faint_logs[first[segment] : last[segment]])
                logs[segment] = np.logaddexp(logs[segment], log_faint)
        result: Array = logs - self._log_total
        return result


def node_distributions(
    vocabulary: ByteVocabulary, states: Sequence[ViabilityState], logits: Tensor
) -> Iterator[NodeDistribution]:
    """Restrict next-token distributions to what may follow each node, and renormalize them.

    logits: (N, V) logits or log-probabilities in order, any float dtype, -inf = banned.
    All stop tokens count as one end. A row with NaN or +inf gives a distribution of NaN.
    """
    # The softmax where the logits are and one copy, then row by row: each finds the memory of the
    # one before in the cache, where tiles of many would leave it.
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    shares = torch.softmax(scores, -1).cpu()
    for row, of_row, state in zip(scores, shares, states, strict=True):
        # A row that is kept would keep the memory of all that came with it.
        kept = of_row.clone() if len(states) > 1 else of_row
        yield NodeDistribution(vocabulary, row, kept, allowed_in_order(vocabulary, [state])[0])


def allowed_in_order(vocabulary: ByteVocabulary, states: Sequence[ViabilityState]) -> Row:
    """(N, V) bool, columns as in `ordered_tokens`: what may follow, stop tokens too."""
    num_rows = len(vocabulary.trie.tokens)
    ends = slice(num_rows, num_rows + len(vocabulary.stop_token_ids))
    allowed = np.zeros((len(states), vocabulary.vocab_size), np.bool_)
    for state, row in zip(states, allowed, strict=True):
        row[:num_rows] = vocabulary.viability.allowed(state)
        row[ends] = vocabulary.viability.may_end(state)
    return allowed


class TreeMarginals:
    """Masses of a growing tree's heads: W(bx) is summed over the heads whose distribution is known.

    A node's mass is the probability of its tokens after `base`. It is known once its parent's
    distribution is. A head whose distribution is not known is left out of the sums.
    """

    def __init__(self, tree: TokenTree, base: int = ROOT_NODE) -> None:
        """base: an ancestor of all heads; other nodes' masses are relative to it."""
        self.tree = tree
        self.distributions: dict[int, NodeDistribution] = {}
        self.log_mass = {base: 0.0}

    def append(self, byte: int) -> None:
        """Grow the tree. Raises ValueError if `byte` cannot follow."""
        for node in self.tree.append(byte):
            self._weigh(node)
        heads = {head.node for head in self.tree.heads}
        weighed = heads.union(self.missing())
        self.distributions = {n: kept for n, kept in self.distributions.items() if n in heads}
        self.log_mass = {node: mass for node, mass in self.log_mass.items() if node in weighed}

    def add_distribution(self, node: int, following: NodeDistribution) -> None:
        """Learn the distribution of a node; parents come first."""
        self.distributions[node] = following
        for child in self.tree.children(node):
            self._weigh(child)

    def restart(self) -> None:
        """Take the text for its newest nodes alone, whatever led there."""
        self.log_mass = {
            node: 0.0 if prefix == ROOT else -math.inf for node, prefix in self.tree.heads
        }

    def missing(self) -> list[int]:
        """Nodes whose distributions are needed to sum over all heads, parents first."""
        missing: set[int] = set()
        for node, _ in self.tree.heads:
            if node not in self.distributions:
                missing.add(node)
                while node not in self.log_mass:
                    missing.add(node := self.tree.parent[node])
        return sorted(missing)

    def log_masses(self) -> tuple[Array, float]:
        """log W(bx) of each next symbol x over heads with a distribution, and of their sum.

        Returns: (257,) float64, nats; nats.
        """
        trie, masses = self.tree.vocabulary.trie, np.full(NUM_SYMBOLS, -math.inf)
        for node, prefix in self.tree.heads:
            if node not in self.distributions or self.log_mass[node] == -math.inf:
                continue
            following, log_mass = self.distributions[node], self.log_mass[node]
            symbols = trie.symbol[trie.children(prefix)]
            log_children = log_mass + following.log_children(prefix)
            masses[symbols] = np.logaddexp(masses[symbols], log_children)
            if prefix == ROOT:
                masses[END_SYMBOL] = np.logaddexp(masses[END_SYMBOL], log_mass + following.log_end)
        return masses, log_sum(masses)

    def _weigh(self, node: int) -> None:
        parent = self.tree.parent[node]
        if parent in self.distributions:
            step = self.distributions[parent].of_token(self.tree.token[node])
            self.log_mass[node] = self.log_mass[parent] + step
