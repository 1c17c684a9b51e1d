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
from .token_tree import ROOT_NODE, Head, TokenTree

Array = NDArray[np.float64]


def log_sum(values: Array) -> float:
    """log of the sum of exp(values), -inf for none; values: (n,) float64, -inf allowed."""
    top = float(values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(float(np.exp(values - top).sum()))


def log_sum_of(values: Sequence[float]) -> float:
    """`log_sum` of a few numbers, without the cost of an array."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return sum(values) if values else top  # NaN may hide behind -inf
    return top + math.log(sum(math.exp(value - top) for value in values))


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


# N nodes, V tokens of the vocabulary, rows of the trie.

LEAST_WEIGHT = {np.dtype(name): 1e4 * float(np.finfo(name).tiny) for name in ("f4", "f8")}
"""Weights below so many times the smallest normal number are too small for sums: those are then
taken on the scale of their maximum."""


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """Log-probabilities, in nats, that together with the end sum to one (all -inf: a dead end).

    logits: (V,) by token. allowed: (V,) bool by row of the trie. weights: (V + 1,) by row, the
    probabilities divided by exp(log_scale), 0 where not allowed and behind the last row; `is_wide`
    says that some allowed ones are too small for sums. first_bytes: float64, their sums by first
    byte. log_total: log of the mass kept, on the scale of the logits. log_end: of ending the text,
    -inf where it may not. log_kept: share of the model's mass that was kept, 0.0 if all of it,
    -inf for a dead end.
    """

    trie: ByteTrie
    logits: NDArray[np.floating]
    allowed: NDArray[np.bool_]
    weights: NDArray[np.floating]
    first_bytes: Array
    is_wide: bool
    log_scale: float
    log_total: float
    log_end: float
    log_kept: float

    @property
    def masked_mass(self) -> float:
        """Share of the model's mass that was not kept; 0.0 for a law that is none."""
        return -math.expm1(self.log_kept) if math.isfinite(self.log_kept) else 0.0

    def of_token(self, token: int) -> float:
        """Log-probability of one token."""
        is_allowed = self.allowed[self.trie.row_of[token]]
        return float(self.logits[token]) - self.log_total if is_allowed else -math.inf

    def log_reach(self, prefix: int) -> float:
        """Log-probability of all that starts with a trie node's prefix and is longer.

        The end counts where the prefix is empty: 0.0 then, -inf for a dead end.
        """
        if prefix == ROOT:
            return -math.inf if self.log_kept == -math.inf else 0.0
        low, high = self.trie.longer(prefix)
        if self.is_wide:
            return log_sum(self._scores(low, high)) - self.log_total
        total = float(np.add.reduce(self.weights[low:high], dtype=np.float64))
        return math.log(total) + self.log_scale if total else -math.inf

    def log_children(self, prefix: int) -> Array:
        """`log_reach` by next byte: one entry for each child of the trie node, float64."""
        if self.is_wide:
            low, high = self.trie.longer(prefix)
            starts = self.trie.start[self.trie.children(prefix)]
            return segment_log_sums(self._scores(low, high), starts) - self.log_total
        with np.errstate(divide="ignore"):
            logs: Array = np.log(self.child_weights(prefix)) + self.log_scale
        return logs

    def child_weights(self, prefix: int) -> Array:
        """Weights by next byte, as `log_children`; too small ones are lost where it `is_wide`."""
        if prefix == ROOT:
            return self.first_bytes
        low, high = self.trie.longer(prefix)
        starts = self.trie.start[self.trie.children(prefix)]
        sums: Array = np.add.reduceat(self.weights[low:high], starts, dtype=np.float64)
        return sums

    def likely(self, prefix: int, least: float) -> list[int]:
        """Rows of the tokens that start with a trie node's prefix, are longer and have a
        log-probability of `least` or more.
        """
        low, high = self.trie.longer(prefix)
        if self.is_wide:
            is_likely = self._scores(low, high) >= least + self.log_total
        else:
            is_likely = self.weights[low:high] >= math.exp(least - self.log_scale)
        rows: list[int] = (np.flatnonzero(is_likely) + low).tolist()
        return rows

    def _scores(self, low: int, high: int) -> Array:
        scores = self.logits[self.trie.tokens[low:high]]
        return np.where(self.allowed[low:high], scores, -math.inf).astype(np.float64)


def node_laws(
    vocabulary: ByteVocabulary,
    states: Sequence[ViabilityState],
    logits: Tensor,
) -> Iterator[NodeLaw]:
    """Restrict next-token distributions to what may follow each node, and renormalise them.

    logits: (N, at least vocab_size) logits or log-probabilities, any float dtype, -inf = banned.
    Exponentials are taken in float32 (float64 for float64), sums in float64. All stop tokens count
    as one end. A row with NaN or +inf gives a law of NaN.
    """
    # One copy from the device, then row by row: each finds the memory of the one before in the
    # cache, where tiles of many would leave it.
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    rows = scores.numpy(force=True)[:, : vocabulary.vocab_size]
    for state, row in zip(states, rows, strict=True):
        yield _node_law(vocabulary, state, row)


def allowed_in_order(
    vocabulary: ByteVocabulary, states: Sequence[ViabilityState]
) -> NDArray[np.bool_]:
    """(N, vocab_size) bool, columns as in `ordered_tokens`: what may follow, stop tokens too."""
    num_rows = len(vocabulary.trie.tokens)
    ends = slice(num_rows, num_rows + len(vocabulary.stop_token_ids))
    allowed = np.zeros((len(states), vocabulary.vocab_size), np.bool_)
    for state, row in zip(states, allowed, strict=True):
        row[:num_rows] = vocabulary.viability.allowed(state)
        row[ends] = vocabulary.viability.may_end(state)
    return allowed


def _node_law(
    vocabulary: ByteVocabulary, state: ViabilityState, logits: NDArray[np.floating]
) -> NodeLaw:
    trie, allowed = vocabulary.trie, vocabulary.viability.allowed(state)
    largest = np.maximum.reduce(logits)
    top = largest if largest != -math.inf else logits.dtype.type(0.0)
    every = logits - top
    np.exp(every, out=every)
    weights = every.take(trie.padded_tokens)
    by_row = weights[:-1]
    is_wide = _is_wide(trie, logits, by_row, allowed)
    by_row *= allowed
    weights[-1] = 0.0
    first_bytes = np.add.reduceat(weights, trie.first_byte_starts, dtype=np.float64)
    log_rows = _log(float(np.add.reduce(first_bytes))) + float(top)
    if is_wide:
        log_rows = log_sum(logits[trie.tokens[allowed]].astype(np.float64))
    log_end, log_all = -math.inf, log_rows
    if vocabulary.viability.may_end(state):
        log_end = log_sum_of(logits[vocabulary.stop_token_ids].tolist())
        log_all = log_sum_of((log_rows, log_end))
    is_dead = log_all == -math.inf
    log_total = 0.0 if is_dead else log_all
    log_every = _log(float(np.add.reduce(every))) + float(top)
    return NodeLaw(
        trie=trie,
        logits=logits,
        allowed=allowed,
        weights=weights,
        first_bytes=first_bytes,
        is_wide=is_wide,
        # Nothing has weight in a dead end, and its scale might be infinite.
        log_scale=float(top) - log_total if log_rows != -math.inf else 0.0,
        log_total=log_total,
        log_end=log_end - log_total,
        log_kept=-math.inf if is_dead else log_all - log_every,
    )


def _is_wide(
    trie: ByteTrie,
    logits: NDArray[np.floating],
    weights: NDArray[np.floating],
    allowed: NDArray[np.bool_],
) -> bool:
    limit = LEAST_WEIGHT[weights.dtype]
    if np.minimum.reduce(weights) >= limit:
        return False
    is_tiny = allowed & (weights < limit)
    # A banned token is not small, it is absent.
    return bool((logits[trie.tokens[is_tiny]] > -math.inf).any())


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf


LARGEST_SPREAD = 500.0
"""Nats between the masses of heads up to which they are summed on one scale."""


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
        """Log masses where sums on one scale could lose small terms."""
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

    def _weigh(self, node: int) -> None:
        parent = self.tree.parent[node]
        if parent in self.laws:
            step = self.laws[parent].of_token(self.tree.token[node])
            self.log_mass[node] = self.log_mass[parent] + step
