"""Log-probabilities of all bytes of a text from one pass over its token tree."""

import math
from collections.abc import Iterable, Sequence
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

# N laws, C columns, T columns of one tile, I times K intervals.


class LawSums:
    """Logs of sums of exp(logit) over intervals of allowed columns, N laws at once.

    The logits come tile by tile, so those of all columns need never exist. Intervals cut a law's
    columns into *pieces*; each is read once, summed in float64, and serves all that hold it.
    """

    def __init__(
        self, allowed: NDArray[np.bool_], law: NDArray[np.int64], intervals: NDArray[np.int64]
    ) -> None:
        """allowed: (N, C), others count as banned. law: (I,) in [0, N), and intervals: (I, K, 2),
        half-open columns, K of it: what to sum."""
        self._allowed = allowed
        num_columns = allowed.shape[1]
        self._bounds = law[:, None, None] * num_columns + intervals
        law, column = np.divmod(np.unique(self._bounds), num_columns)
        by_column = np.argsort(column)
        self._cut_law, self._cut_column = law[by_column], column[by_column]
        self._pieces: list[tuple[NDArray[np.int64], Array]] = []

    def add(self, first: int, logits: Tensor) -> None:
        """Sum a tile, logits (N, T) of columns `first` and on.

        Exponentials are taken in float32 (float64 for float64). NaN or +inf gives NaN.
        """
        scores = (logits if logits.dtype == torch.float64 else logits.float()).cpu()
        width = scores.shape[1]
        law, column = np.divmod(self._starts(first, width), width)
        logs = _log_sums(scores, self._allowed[:, first : first + width], law, column)
        self._pieces.append((law * self._allowed.shape[1] + column + first, logs))

    def log_sums(self) -> Array:
        """(I, K) float64 nats, -inf for none, once all columns were added."""
        starts, logs = (np.concatenate(parts) for parts in zip(*self._pieces, strict=True))
        order = np.argsort(starts)
        low, high = np.searchsorted(starts[order], self._bounds.reshape(-1, 2)).T
        sums = np.full(len(low), -math.inf)
        lengths = (high - low)[is_some := low < high]
        begin = np.cumsum(lengths) - lengths
        pieces = np.repeat(low[is_some] - begin, lengths) + np.arange(lengths.sum())
        sums[is_some] = segment_log_sums(logs[order[pieces]], begin)
        return sums.reshape(self._bounds.shape[:-1])

    def _starts(self, first: int, width: int) -> NDArray[np.int64]:
        """Where pieces begin in the flattened tile; every law's first column begins one."""
        low, high = np.searchsorted(self._cut_column, (first + 1, first + width))
        cuts = self._cut_law[low:high] * width + self._cut_column[low:high] - first
        return np.sort(np.concatenate([cuts, np.arange(len(self._allowed)) * width]))


def _log_sums(
    scores: Tensor, allowed: NDArray[np.bool_], law: NDArray[np.int64], column: NDArray[np.int64]
) -> Array:
    """Of the pieces that begin at these columns of these laws, in order."""
    top = scores.amax(1)
    weights = scores.sub(top[:, None]).exp_().numpy()
    weights *= allowed
    starts = law * scores.shape[1] + column
    sums = np.add.reduceat(weights.ravel(), starts, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + top.double().numpy()[law]
    for row in _wide(scores, top):
        masked = np.where(allowed[row], scores[row].double().numpy(), -math.inf)
        logs[law == row] = segment_log_sums(masked, column[law == row])
    return logs


def _wide(scores: Tensor, top: Tensor) -> list[int]:
    """Rows whose smallest weights are too small to be summed on the scale of the largest."""
    rows, largest = scores.numpy(), top.numpy()
    spread = -math.log(LEAST_WEIGHT[rows.dtype])
    is_wide = (rows.min(1) < largest - spread) & (largest < math.inf) | (largest == -math.inf)
    return np.flatnonzero(is_wide).tolist()


class PathSums:
    """What is read of the laws of a text's nodes, and the log-probabilities that it gives.

    The nodes are those of the trees of all its prefixes, about one a byte. Only sums along the text
    are ever read from a node's law, about ten numbers, so laws need not be kept. They may come in
    any order, and some may never come: then only `bounds` are known. For them, the nodes without a
    law are taken in *groups*, each below one node whose mass is known.
    """

    def __init__(self, vocabulary: ByteVocabulary, text: bytes, mode: Mode = "masked") -> None:
        """Raises ValueError at a byte that cannot follow."""
        self.tree, self._mode = TokenTree(vocabulary), mode
        tree, heads = self.tree, [self.tree.heads]
        self._standing = [tree.standing[ROOT_NODE]]
        for byte in text:
            self._standing.extend(tree.standing[node] for node in tree.append(byte))
            heads.append(tree.heads)
        self._parent = np.array(tree.parent)
        self._row = np.array([0, *(tree.vocabulary.trie.row_of[token] for token in tree.token[1:])])
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

    def add(self, nodes: Sequence[int], tiles: Iterable[tuple[int, Tensor]]) -> None:
        """Keep the sums along the text of the laws of some nodes.

        tiles: the first column and logits (nodes, T), columns as in `ordered_tokens`.
        """
        place = np.full(len(self._parent), -1)
        place[nodes] = np.arange(len(nodes))
        steps = np.flatnonzero(place[self._node] >= 0)
        children = 1 + np.flatnonzero(place[self._parent[1:]] >= 0)
        law, above = place[self._node[steps]], place[self._parent[children]]
        standings = [self._standing[node] for node in nodes]
        allowed = allowed_in_order(self.tree.vocabulary, standings, self._mode)
        sums = LawSums(allowed, law, self._intervals[steps])
        for first, logits in tiles:
            self._choose(children, above, first, logits)
            sums.add(first, logits)
        log_sums = sums.log_sums()
        total = np.empty(len(nodes))
        total[law[self._is_new[steps]]] = log_sums[self._is_new[steps], 1]
        total[total == -math.inf] = 0.0  # a dead end
        self._has_law[nodes] = True
        self._log_step[children] -= total[above]
        self._logs[steps] = log_sums - total[law, None]

    def _choose(
        self, children: NDArray[np.int64], above: NDArray[np.int64], first: int, logits: Tensor
    ) -> None:
        """Keep the logits of nodes whose tokens are in a tile; above: the row of each parent."""
        column = self._row[children] - first
        is_inside = (column >= 0) & (column < logits.shape[1])
        chosen = logits[above[is_inside], column[is_inside]]
        self._log_step[children[is_inside]] = chosen.double().cpu()

    def log_probs(self) -> Array:
        """(bytes + 1,) float64: log q of each byte and of the end; all laws must be known."""
        return _log_shares(self._log_terms(self._log_masses()), self._place)

    def bounds(self, *, is_upper: bool) -> Array:
        """(bytes + 1,) float64: an upper or lower bound on `log_probs` from the known laws.

        A group has at most its mass, exactly that where it is one new node; no more of it can
        reach the next symbol than this one, and then none of the rest counts either.
        """
        log_mass = self._log_masses()
        node, place, goes_on = self._groups(log_mass)
        is_new = np.array(self.tree.end)[node] == place
        counts = np.stack((goes_on & is_upper, goes_on | is_new | (not is_upper)), 1)
        groups = np.where(counts, log_mass[node, None], -math.inf)
        terms = np.concatenate((self._log_terms(log_mass), groups))
        return _log_shares(terms, np.concatenate((self._place, place)))

    def _log_masses(self) -> Array:
        """By node; NaN where the law of an ancestor is not known."""
        log_mass = [0.0]
        steps = zip(self.tree.parent[1:], self._log_step[1:].tolist(), strict=True)
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


def _log_shares(terms: Array, place: NDArray[np.int64]) -> Array:
    """Logs of probabilities by place, from (n, 2) terms of what has them and of what there is.

    A text without any mass gives every symbol none.
    """
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(place.max() + 1))
    reached, total = (segment_log_sums(column, starts) for column in terms[order].T)
    return np.where(total == -math.inf, -math.inf, reached - total)
