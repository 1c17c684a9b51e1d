"""Log-probabilities of all bytes of a text from one pass over its token tree."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..tokenizer.trie import ROOT
from ..tokenizer.vocabulary import END_SYMBOL, ByteVocabulary
from .node_law import LEAST_WEIGHT, Array, allowed_in_order, segment_log_sums
from .settings import Mode
from .token_tree import ROOT_NODE, TokenTree

# N laws, V tokens, C columns, I times K intervals.

NUMBERS_AT_ONCE = 1 << 18
"""Logits that are read several times over: about what stays in a processor's cache."""


def interval_sums(
    logits: Tensor,
    tokens: Tensor,
    allowed: NDArray[np.bool_],
    law: NDArray[np.int64],
    intervals: NDArray[np.int64],
) -> Array:
    """Logs of sums of exp(logit) over intervals of allowed columns, N laws at once.

    logits: (N, V). tokens: (C,), that of each column. allowed: (N, C), others count as banned. law:
    (I,) in [0, N), and intervals: (I, K, 2), half-open columns, K of it: what to sum. Intervals cut
    a law's columns into *pieces*; each is read once, summed in float64, and serves all that hold
    it. Exponentials are taken in float32 (float64 for float64). NaN or +inf gives NaN.

    Returns: (I, K) float64 nats, -inf for none.
    """
    num_laws, num_columns = allowed.shape
    bounds = law[:, None, None] * num_columns + intervals
    starts = np.union1d(np.arange(num_laws) * num_columns, bounds)
    starts = starts[starts < allowed.size]
    logs, num_rows = [], max(1, NUMBERS_AT_ONCE // num_columns)
    for first in range(0, num_laws, num_rows):
        rows = slice(first, first + num_rows)
        scores = logits[rows].index_select(-1, tokens)
        scores = (scores if scores.dtype == torch.float64 else scores.float()).cpu()
        ends = np.array([first, first + num_rows]) * num_columns
        own = slice(*np.searchsorted(starts, ends).tolist())
        logs.append(_piece_log_sums(scores, allowed[rows], starts[own] - ends[0]))
    low, high = np.searchsorted(starts, bounds.reshape(-1, 2)).T
    return _joined(np.concatenate(logs), low, high).reshape(bounds.shape[:-1])


def _piece_log_sums(scores: Tensor, allowed: NDArray[np.bool_], starts: NDArray[np.int64]) -> Array:
    """Of the pieces that begin at these places of the flattened scores, in order."""
    law, column = np.divmod(starts, scores.shape[1])
    top = scores.amax(1)
    weights = scores.sub(top[:, None]).exp_().numpy()
    weights *= allowed
    sums = np.add.reduceat(weights.ravel(), starts, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + top.double().numpy()[law]
    for row in _wide(scores, top):
        masked = np.where(allowed[row], scores[row].double().numpy(), -math.inf)
        logs[law == row] = segment_log_sums(masked, column[law == row])
    return logs


def _joined(logs: Array, low: NDArray[np.int64], high: NDArray[np.int64]) -> Array:
    """Log sums of the pieces low..high-1, -inf for none."""
    sums = np.full(len(low), -math.inf)
    lengths = (high - low)[is_some := low < high]
    if len(lengths):
        begin = np.cumsum(lengths) - lengths
        pieces = np.repeat(low[is_some] - begin, lengths) + np.arange(lengths.sum())
        sums[is_some] = segment_log_sums(logs[pieces], begin)
    return sums


def _wide(scores: Tensor, top: Tensor) -> list[int]:
    """Rows whose smallest weights are too small to be summed on the scale of the largest."""
    rows, largest = scores.numpy(), top.numpy()
    spread = -math.log(LEAST_WEIGHT[rows.dtype])
    is_wide = (rows.min(1) < largest - spread) & (largest < math.inf) | (largest == -math.inf)
    return np.flatnonzero(is_wide).tolist()


@dataclass(frozen=True, slots=True)
class KnownScores:
    """An interval for the log-probability of every byte of a text, and what leaves it open.

    low, high: (bytes + 1,) float64, its ends for each byte and the end. Of each group: node, that
    of known mass; place, how many bytes lie before it; log_share, the log of the share of the
    text's mass there that it holds at most.
    """

    low: Array
    high: Array
    node: NDArray[np.int64]
    place: NDArray[np.int64]
    log_share: Array

    def likely_nodes(self, least: float) -> list[int]:
        """Those of groups that somewhere hold at least such a share of the text's mass."""
        found: list[int] = np.unique(self.node[self.log_share >= math.log(least)]).tolist()
        return found


class PathSums:
    """What is read of the laws of a text's nodes, and the log-probabilities that it gives.

    The nodes are those of the trees of all its prefixes, about one a byte. Only sums along the text
    are ever read from a node's law, about ten numbers, so laws need not be kept. They may come in
    any order, and some may never come: then only intervals are `known`. For these, the nodes
    without a law are taken in *groups*, each below one node whose mass is known.
    """

    def __init__(self, vocabulary: ByteVocabulary, text: bytes, mode: Mode = "masked") -> None:
        """Raises ValueError at a byte that cannot follow."""
        self.tree, self.text, self._mode = TokenTree(vocabulary), text, mode
        tree, heads = self.tree, [self.tree.heads]
        self._standing = [tree.standing[ROOT_NODE]]
        for byte in text:
            self._standing.extend(tree.standing[node] for node in tree.append(byte))
            heads.append(tree.heads)
        self._parent = np.array(tree.parent)
        self._token = np.array(tree.token)
        self._end = np.array(tree.end)
        self._log_step = np.full(len(tree), math.nan)
        """By node: of its token behind its parent."""
        self._has_law = np.zeros(len(tree), np.bool_)
        # The heads of all places in order are one *step* each; the end follows the text.
        counts = np.array([len(own) for own in heads])
        every = chain.from_iterable(chain.from_iterable(heads))
        self._node, prefix = np.fromiter(every, np.int64).reshape(-1, 2).T
        self._place = np.repeat(np.arange(len(counts)), counts)
        """By step: how many bytes before it."""
        self._is_new = prefix == ROOT
        """By step: its node ends there."""
        symbols = np.repeat([*text, END_SYMBOL], counts)
        self._intervals = _intervals(vocabulary, prefix, symbols)
        """(steps, 2, 2) of `ordered_tokens`: with the next symbol; all longer than the prefix."""
        self._logs = np.full((len(prefix), 2), -math.inf)
        """By step: what reaches the next symbol, and all that reaches beyond the text."""

    def add(self, nodes: Sequence[int], logits: Tensor) -> None:
        """Keep the sums along the text of the laws of some nodes.

        logits: (nodes, V).
        """
        place = np.full(len(self._parent), -1)
        place[nodes] = np.arange(len(nodes))
        steps = np.flatnonzero(place[self._node] >= 0)
        children = 1 + np.flatnonzero(place[self._parent[1:]] >= 0)
        law, above = place[self._node[steps]], place[self._parent[children]]
        standings = [self._standing[node] for node in nodes]
        vocabulary = self.tree.vocabulary
        allowed = allowed_in_order(vocabulary, standings, self._mode)
        tokens = torch.from_numpy(vocabulary.ordered_tokens).to(logits.device)
        log_sums = interval_sums(logits, tokens, allowed, law, self._intervals[steps])
        chosen = logits[above, self._token[children]]
        self._log_step[children] = chosen.double().cpu()
        total = np.empty(len(nodes))
        total[law[self._is_new[steps]]] = log_sums[self._is_new[steps], 1]
        total[total == -math.inf] = 0.0  # a dead end
        self._has_law[nodes] = True
        self._log_step[children] -= total[above]
        self._logs[steps] = log_sums - total[law, None]

    def log_probs(self) -> Array:
        """(bytes + 1,) float64: log q of each byte and of the end; all laws must be known."""
        return self.known().high

    def known(self) -> "KnownScores":
        """What the laws that are known tell of `log_probs`.

        A group has at most its mass, exactly that where it is one new node; no more of it can
        reach the next symbol than this one, and then none of the rest counts either.
        """
        log_mass = self._log_masses()
        terms = self._log_terms(log_mass)
        node, place, goes_on = self._groups(log_mass)
        group, is_new = log_mass[node], self._end[node] == place
        reaching, counting = (
            np.where(which, group, -math.inf) for which in (goes_on, goes_on | is_new)
        )
        none = np.full(len(group), -math.inf)
        columns = [(0, none), (1, group), (0, reaching), (1, counting)]
        places = _Places(np.concatenate((self._place, place)))
        sums = [places.log_sums(np.concatenate((terms[:, c], own))) for c, own in columns]
        low, high = (_log_shares(*sums[i : i + 2]) for i in (0, 2))
        return KnownScores(low, high, node, place, group - sums[1][place])

    def _log_masses(self) -> Array:
        """By node; NaN where the law of an ancestor is not known."""
        log_mass = [0.0]
        # A row may have grown the tree since.
        steps = zip(self._parent[1:].tolist(), self._log_step[1:].tolist(), strict=True)
        for parent, step in steps:
            log_mass.append(log_mass[parent] + step)
        return np.array(log_mass)

    def _log_terms(self, log_mass: Array) -> Array:
        """(steps, 2): log masses of what reaches the next symbol, and of all that reaches beyond
        the text; -inf for heads without a law."""
        node = self._node
        terms: Array = log_mass[node, None] + self._logs
        terms[~self._has_law[node]] = -math.inf
        return terms

    def _groups(
        self, log_mass: Array
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The node of each group, its place, and whether a head goes on with the next symbol."""
        known = np.arange(len(log_mass))
        for node in np.flatnonzero(np.isnan(log_mass)).tolist():
            known[node] = known[self._parent[node]]
        unknown = np.flatnonzero(~self._has_law[self._node])
        is_followed = self._intervals[:, 0, 0] < self._intervals[:, 0, 1]
        places = self._place[unknown] * len(log_mass) + known[self._node[unknown]]
        groups, group_of = np.unique(places, return_inverse=True)
        goes_on = np.zeros(len(groups), np.bool_)
        goes_on[group_of[is_followed[unknown]]] = True
        place, node = np.divmod(groups, len(log_mass))
        return node, place, goes_on


def _intervals(
    vocabulary: ByteVocabulary, prefix: NDArray[np.int64], symbols: NDArray[np.int64]
) -> NDArray[np.int64]:
    trie, num_rows = vocabulary.trie, len(vocabulary.trie.tokens)
    ends = (num_rows, num_rows + len(vocabulary.stop_token_ids))
    longer = trie.children_at(prefix, symbols)
    low = trie.low[prefix] + trie.num_ends[prefix]
    # The end, too, is longer than nothing.
    high = np.where(prefix == ROOT, ends[1], trie.high[prefix])
    within = (np.where(longer < 0, low, x[longer]) for x in (trie.low, trie.high))
    is_end = (prefix == ROOT) & (symbols == END_SYMBOL)
    within_low, within_high = (np.where(is_end, *x) for x in zip(ends, within, strict=True))
    return np.stack((within_low, within_high, low, high), 1).astype(np.int64).reshape(-1, 2, 2)


class _Places:
    """Terms in any order, summed by their places 0, 1, ..., each of which has some."""

    def __init__(self, place: NDArray[np.int64]) -> None:
        self._order = np.argsort(place, kind="stable")
        self._starts = np.searchsorted(place[self._order], np.arange(place.max() + 1))

    def log_sums(self, terms: Array) -> Array:
        """By place, of the logs of terms."""
        return segment_log_sums(terms[self._order], self._starts)


def _log_shares(reached: Array, total: Array) -> Array:
    """Logs of probabilities, from the masses of what has them and of what there is.

    A text without any mass gives every symbol none.
    """
    return np.where(total == -math.inf, -math.inf, reached - total)
