"""One prompt while a model reads it, its trunk first, then the nodes beside it; prompts kept."""

import math
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.stream import UNSCORED
from ..tokenizer.trie import ROOT
from ..tokenizer.vocabulary import END_SYMBOL, ByteVocabulary
from .byte_row import NODES_PER_FORWARD, ByteRow
from .node_law import LEAST_WEIGHT, Array, allowed_in_order, segment_log_sums
from .settings import ByteCounts
from .token_tree import ROOT_NODE, TokenTree
from .tree_cache import TreeCache, TreeForward


class BytePrompt:
    """The tree of a prompt and the sums along it that give the log-probabilities of its bytes.

    The trunk is read causally. Beside it lie about three nodes a token: all of them are needed
    for the log-probabilities, else only those that the next byte depends on.
    """

    def __init__(self, vocabulary: ByteVocabulary, text: bytes, *, is_scored: bool) -> None:
        """is_scored: whether log-probabilities of its bytes are wanted.

        Raises ValueError at a byte that cannot follow the ones before it.
        """
        self.sums = PathSums(vocabulary, text) if is_scored else None
        if self.sums is not None:
            self.tree = self.sums.tree
        else:
            self.tree = TokenTree(vocabulary)
            self.tree.extend(text)
        self.cache = TreeCache(self.tree)
        self.trunk = [ROOT_NODE, *self.cache.add_trunk()]
        self.trunk_token_ids = [
            *vocabulary.start_token_ids,
            *(self.tree.token[node] for node in self.trunk[1:]),
        ]
        self.counts = ByteCounts(num_forwards=1, num_nodes=len(self.trunk_token_ids))
        self._on_trunk = set(self.trunk)
        if is_scored:
            self._remaining = [n for n in range(len(self.tree)) if n not in self._on_trunk]
        else:
            self._remaining = self.cache.missing(head.node for head in self.tree.heads)
        self._hidden: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}
        """(1, V) of nodes that later bytes may ask for, as far as they are known."""

    @property
    def is_short(self) -> bool:
        """One forward with a mask of ancestors computes the trunk and all beside it."""
        return len(self.trunk_token_ids) + len(self._remaining) <= NODES_PER_FORWARD

    @property
    def num_first(self) -> int:
        """Token positions of the first forward."""
        return len(self.trunk_token_ids) + (len(self._remaining) if self.is_short else 0)

    def whole_forward(self) -> TreeForward:
        """That forward, start tokens included; its last nodes are those beside the trunk."""
        nodes, self._remaining = self._remaining, []
        self.counts.num_nodes += len(nodes)
        return self.cache.with_trunk(self.cache.add(nodes))

    def next_forward(self) -> TreeForward | None:
        """The next nodes beside the trunk; None when all are computed."""
        nodes = self._remaining[:NODES_PER_FORWARD]
        self._remaining = self._remaining[NODES_PER_FORWARD:]
        if not nodes:
            return None
        self.counts.num_forwards += 1
        self.counts.num_nodes += len(nodes)
        return self.cache.add(nodes)

    def take(self, nodes: list[int], hidden: Tensor) -> None:
        """Keep the hidden states (len(nodes), D) that later bytes may ask for."""
        last = self.trunk[-1]
        for node, row in zip(nodes, torch.split(hidden, 1), strict=True):
            if node == last or (self.tree.is_alive(node) and node not in self._on_trunk):
                self._hidden[node] = row.clone()

    def take_logits(self, nodes: list[int], logits: Tensor) -> None:
        """Learn the laws (len(nodes), V); keep copies of what later bytes may ask for."""
        for node, row in zip(nodes, torch.split(logits, 1), strict=True):
            if node in self._hidden:
                self.logits[node] = row.clone()
        assert self.sums is not None
        self.sums.add(nodes, logits)

    def compact(self) -> tuple[int, list[int]]:
        """Drop what neither later nodes nor later bytes attend to; see TreeCache.compact."""
        needed: set[int] = set()
        for node in self._remaining:
            parent = self.tree.parent[node]
            while parent in self.cache and parent not in needed and parent not in self._on_trunk:
                needed.add(parent)
                parent = self.tree.parent[parent]
        return self.cache.compact(needed)

    def log_probs(self) -> Tensor:
        """(bytes - 1,) float64: log q of each byte but the first, or (0,) where none are wanted."""
        return UNSCORED if self.sums is None else torch.from_numpy(self.sums.log_probs()[1:-1])

    def row(self, *, prefetch: int, reach: int) -> ByteRow:
        """The row that goes on from the prompt; see ByteRow."""
        row = ByteRow(self.cache, self.counts, prefetch=prefetch, reach=reach)
        row.hidden = self._hidden
        return row


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt as one model has read it: a row that nothing was appended to."""

    row: ByteRow
    states: list[tuple[Tensor, Tensor]]
    """Keys and values by layer, (H, slots, D) each."""
    token_log_probs: Tensor
    """Log-probabilities of its bytes but the first, as `PromptLogits` has them."""


class PromptCache:
    """The prompts read last, of any models; the least recently used ones make room.

    It holds the keys and values of each prompt's tokens, on their models' devices, beside the
    log-probabilities. One cache may serve many decoders.
    """

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        """max_bytes: memory for keys and values; 0 keeps nothing."""
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be >= 0, got {max_bytes}")
        self.max_bytes, self.num_bytes = max_bytes, 0
        self._prompts: OrderedDict[Hashable, ReadPrompt] = OrderedDict()

    def __len__(self) -> int:
        return len(self._prompts)

    def get(self, key: Hashable) -> ReadPrompt | None:
        """A prompt that is still kept."""
        if key in self._prompts:
            self._prompts.move_to_end(key)
        return self._prompts.get(key)

    def put(self, key: Hashable, prompt: ReadPrompt) -> None:
        """Keep a prompt; one that is not kept already."""
        self._prompts[key] = prompt
        self.num_bytes += _num_bytes(prompt)
        while self.num_bytes > self.max_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self.num_bytes -= _num_bytes(oldest)


def _num_bytes(prompt: ReadPrompt) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in prompt.states)


# N laws, C columns (the vocabulary in the order of the trie), I pairs of intervals.

NUMBERS_AT_ONCE = 1 << 18
"""Logits that are read several times over: about what stays in a processor's cache."""


class PathSums:
    """Sums along a text of the laws of its nodes, and the log-probabilities of its bytes.

    The nodes are those of the trees of all its prefixes, about one a byte. About ten numbers are
    read from a node's law, so laws need not be kept, and may come in any order. The heads of every
    prefix are one *step* each: a step knows how much of its node's law goes on with the next byte
    of the text, and how much goes on at all.
    """

    def __init__(self, vocabulary: ByteVocabulary, text: bytes) -> None:
        """Raises ValueError at a byte that cannot follow."""
        # 1. Grow the tree: nodes that die on the way still count for the bytes before.
        self.tree = tree = TokenTree(vocabulary)
        self._states, heads = [tree.state[ROOT_NODE]], [tree.heads]
        for byte in text:
            self._states.extend(tree.state[node] for node in tree.append(byte))
            heads.append(tree.heads)
        self._parent, self._token = np.array(tree.parent), np.array(tree.token)
        self._log_step = np.full(len(tree), math.nan)
        """Log-probability of a node's token behind its parent, by node."""
        # 2. Name the sums that each step needs, as intervals of the vocabulary in order.
        counts = np.array([len(step_heads) for step_heads in heads])
        self._first_step = np.cumsum(counts) - counts
        """The first step of a prefix, by its number of bytes."""
        pairs = chain.from_iterable(chain.from_iterable(heads))
        self._node, prefix = np.fromiter(pairs, np.int64).reshape(-1, 2).T
        self._is_new = prefix == ROOT
        """Whether a step's node ends where the prefix of the text does."""
        symbols = np.repeat([*text, END_SYMBOL], counts)
        self._intervals = _intervals(vocabulary, prefix, symbols)
        """(steps, 2, 2): tokens that go on with the next symbol, and all that go on."""
        self._logs = np.full((len(prefix), 2), math.nan)
        """Log sums of these, by step, on the scale of the node's law."""

    def add(self, nodes: Sequence[int], logits: Tensor) -> None:
        """Keep the sums along the text of the laws of some nodes.

        logits: (nodes, V).
        """
        # 1. Which steps and children read these laws.
        law_of = np.full(len(self._parent), -1)
        law_of[nodes] = np.arange(len(nodes))
        steps = np.flatnonzero(law_of[self._node] >= 0)
        children = 1 + np.flatnonzero(law_of[self._parent[1:]] >= 0)
        law, parent_law = law_of[self._node[steps]], law_of[self._parent[children]]
        # 2. Sums of the tokens that may follow.
        vocabulary = self.tree.vocabulary
        allowed = allowed_in_order(vocabulary, [self._states[node] for node in nodes])
        tokens = torch.from_numpy(vocabulary.ordered_tokens).to(logits.device)
        log_sums = interval_sums(logits, tokens, allowed, law, self._intervals[steps])
        # 3. All that may follow a node is what goes on at the step where it is new.
        is_new = self._is_new[steps]
        total = np.empty(len(nodes))
        total[law[is_new]] = log_sums[is_new, 1]
        total[total == -math.inf] = 0.0  # a dead end has nothing to be divided
        chosen = logits[parent_law, self._token[children]].double().cpu().numpy()
        self._log_step[children] = chosen - total[parent_law]
        self._logs[steps] = log_sums - total[law, None]

    def log_probs(self) -> Array:
        """(bytes + 1,) float64: log q of each byte and of the end, once all laws were added.

        A text without any mass gives every symbol none.
        """
        log_mass = [0.0]
        steps = zip(self._parent[1:].tolist(), self._log_step[1:].tolist(), strict=True)
        for parent, step in steps:
            log_mass.append(log_mass[parent] + step)
        terms = np.array(log_mass)[self._node, None] + self._logs
        reached, total = (segment_log_sums(column, self._first_step) for column in terms.T)
        return np.where(total == -math.inf, -math.inf, reached - total)


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


def interval_sums(
    logits: Tensor,
    tokens: Tensor,
    allowed: NDArray[np.bool_],
    law: NDArray[np.int64],
    intervals: NDArray[np.int64],
) -> Array:
    """Logs of sums of exp(logit) over intervals of allowed columns, N laws at once.

    logits: (N, V). tokens: (C,), that of each column. allowed: (N, C), others count as banned. law:
    (I,) in [0, N), and intervals: (I, 2, 2), half-open columns, two of it: what to sum. Intervals
    cut a law's columns into *pieces*; each is read once, summed in float64, and serves all that
    hold it. Exponentials are taken in float32 (float64 for float64). NaN or +inf gives NaN.

    Returns: (I, 2) float64 nats, -inf for none.
    """
    num_laws, num_columns = allowed.shape
    # 1. Pieces begin wherever a law or an interval does.
    bounds = law[:, None, None] * num_columns + intervals
    starts = np.union1d(np.arange(num_laws) * num_columns, bounds)
    starts = starts[starts < allowed.size]
    # 2. Sum the pieces of as many laws at once as stay in the cache.
    logs, num_rows = [], max(1, NUMBERS_AT_ONCE // num_columns)
    for first in range(0, num_laws, num_rows):
        rows = slice(first, first + num_rows)
        scores = logits[rows].index_select(-1, tokens)
        scores = (scores if scores.dtype == torch.float64 else scores.float()).cpu()
        ends = np.array([first, first + num_rows]) * num_columns
        pieces = slice(*np.searchsorted(starts, ends).tolist())
        logs.append(_piece_log_sums(scores, allowed[rows], starts[pieces] - ends[0]))
    # 3. Join the pieces of each interval.
    low, high = np.searchsorted(starts, bounds.reshape(-1, 2)).T
    return _joined(np.concatenate(logs), low, high).reshape(bounds.shape[:-1])


def _piece_log_sums(scores: Tensor, allowed: NDArray[np.bool_], starts: NDArray[np.int64]) -> Array:
    """Log sums, in order, of the pieces that begin at these indices of the flattened scores."""
    law, column = np.divmod(starts, scores.shape[1])
    top = scores.amax(1)
    weights = scores.sub(top[:, None]).exp_().numpy()
    weights *= allowed
    sums = np.add.reduceat(weights.ravel(), starts, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + top.double().numpy()[law]
    # The smallest weights of some laws are too small to be summed on the scale of the largest.
    rows, largest = scores.numpy(), top.numpy()
    spread = -math.log(LEAST_WEIGHT[rows.dtype])
    is_wide = (rows.min(1) < largest - spread) & (largest < math.inf) | (largest == -math.inf)
    for row in np.flatnonzero(is_wide).tolist():
        masked = np.where(allowed[row], rows[row].astype(np.float64), -math.inf)
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
