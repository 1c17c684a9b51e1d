"""One text of a batch at byte level: its tree, its memory, its next byte; prompts that are kept."""

import copy
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import asdict, dataclass
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from ..tokenizer.vocabulary import NUM_SYMBOLS, ByteVocabulary
from .node_distribution import Array, NodeDistribution, TreeMarginals
from .token_tree import ROOT_NODE, TokenTree
from .tree_cache import TreeCache, TreeForward

NODES_PER_FORWARD = 512
"""Nodes that are computed at once: bounds the mask, (nodes, slots)."""

LOGITS_AT_ONCE = 8
"""Nodes of one row that the output layer reads together: about as many cost what one does."""

LEAST_SHARE = 0.1
"""Continuations less likely than this are not computed ahead: about what their nodes cost."""

PREFETCH = 4
"""Likely continuations that each forward computes ahead of the text: one text takes a third less
time on a CPU, eight texts take 2 % more."""

WITH_GUESSES = 8
"""Nodes of all rows up to which a forward has guesses among them. Rows are padded to the one with
the most nodes, so one row's guesses enlarge all rows, and save a part of one forward."""

MAX_DEAD_SLOTS = 64
"""Slots of dead nodes that are tolerated, and a quarter of all."""


@dataclass(slots=True)
class ByteCounts:
    """The work for one row since its prompt came, the prompt included."""

    num_forwards: int = 0
    """Forwards that the row took part in."""
    num_nodes: int = 0
    """Token positions computed in them."""
    weight: float = 0.0
    """Sum, over the next-token distributions that went into those of bytes, of their node's share
    of the text's mass."""
    masked_mass: float = 0.0
    """The same of this share times the probability that masking took from other tokens; 0 where
    tokens are truncated, as a truncation sees only those that are left."""

    def record(self) -> dict[str, float]:
        """The figures of a ledger; `masked_mass` as the mean of the distributions by share."""
        figures: dict[str, float] = asdict(self)
        weight = figures.pop("weight")
        return figures | {"masked_mass": self.masked_mass / weight if weight else 0.0}


class ByteRow:
    """A growing text, and the distributions of nodes that its next byte depends on.

    By node: `hidden` (1, D) of those whose distribution may be needed, `logits` (1, V) until it is,
    `sizes` of its largest token logits, where measured. `is_over`: the text has ended, so nothing
    follows it; `is_outgrown`: as it needs more than `reach` positions.
    """

    def __init__(self, vocabulary: ByteVocabulary, reach: int) -> None:
        """reach: positions of the model."""
        self.tree = TokenTree(vocabulary)
        self.cache, self.marginals = TreeCache(self.tree), TreeMarginals(self.tree)
        self.counts, self.reach = ByteCounts(), reach
        self.hidden: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}
        self.sizes: dict[int, float] = {}
        self.is_over = self.is_outgrown = False
        self._has_logits: set[int] = set()
        """Nodes of `hidden` whose logits were computed."""
        self._uncounted: list[tuple[float, float]] = []
        """Log mass and masked mass of distributions that were not counted yet."""
        self._foreseen: list[int] = []

    def copy(self) -> "ByteRow":
        """Another row with the same text and nothing counted yet."""
        vocabulary = self.tree.vocabulary
        row = copy.deepcopy(self, {id(vocabulary): vocabulary})
        row.counts = ByteCounts()
        return row

    def begin(self) -> None:
        """Make the text so far a prompt: distributions are made anew, the mass of the trunk is one.

        `next_forward` computes what the next byte asks for.
        """
        trunk = self.tree.trunk()
        self.marginals = TreeMarginals(self.tree, trunk[-1] if trunk else ROOT_NODE)
        self.logits, self._has_logits, self._uncounted = {}, set(), []
        # Those distributions were not warped, so what was masked in them does not count.
        self.counts.weight = self.counts.masked_mass = 0.0
        self._foreseen = self.cache.missing(self.wanted())

    def append(self, byte: int) -> None:
        """Grow the text; a byte that cannot follow (the end, say) ends it."""
        try:
            if not self.is_over:
                self.marginals.append(byte)
        except ValueError:
            self.is_over = True

    def wanted(self) -> list[int]:
        """Nodes whose distributions the next byte asks for, parents first."""
        if self.is_over:
            return []
        wanted = self.marginals.missing()
        if any(self.cache.position(node) >= self.reach for node in wanted):
            self.is_over = self.is_outgrown = True
            return []
        return wanted

    def forward(self, wanted: list[int], num_rows: int) -> TreeForward | None:
        """The forward for the distributions of `wanted`, with guesses; None if all is computed.

        num_rows: that are read together.
        """
        missing = self.cache.missing(wanted)
        if not missing and not (self.cache.is_empty and wanted):  # then the root's is not computed
            return None
        limit = WITH_GUESSES // num_rows - len(missing)
        guesses = self.cache.missing(self._guesses())[:limit] if limit > 0 else []
        return self._forward(sorted({*missing, *guesses}))

    def _guesses(self) -> list[int]:
        """Nodes that the likeliest tokens after the heads would add."""
        # 1. The continuations that hold enough of the text's mass, each as the bytes that are left
        #    of a token after a head.
        marginals, trie = self.marginals, self.tree.vocabulary.trie
        least = marginals.log_masses()[1] + math.log(LEAST_SHARE)
        likely: list[tuple[float, bytes]] = []
        for node, prefix in self.tree.heads:
            following = marginals.distributions.get(node)
            log_mass = marginals.log_mass.get(node, -math.inf)
            if following is None or not log_mass + following.log_reach(prefix) >= least > -math.inf:
                continue
            num_known = len(self.tree.text) - self.tree.end[node]
            for row in following.likely(prefix, least - log_mass):
                step = following.of_token(int(trie.tokens[row]))
                likely.append((log_mass + step, trie.texts[row][num_known:]))
        # 2. The nodes of the likeliest ones.
        guesses: list[int] = []
        for _, continuation in sorted(likely, reverse=True)[:PREFETCH]:
            guesses += self.tree.guess(continuation)
        return self._within_reach(guesses)

    def _within_reach(self, nodes: list[int]) -> list[int]:
        return [node for node in nodes if self.cache.position(node) < self.reach]

    def foresee(self, continuation: bytes) -> None:
        """Prepare for bytes that are certain to come: `next_forward` computes what they need."""
        guesses = [] if self.is_over else self.tree.guess(continuation)
        self._foreseen = self.cache.missing(self._within_reach(guesses))

    def next_forward(self) -> TreeForward | None:
        """The next forward of what is foreseen, None when there is no more."""
        nodes = self._foreseen[:NODES_PER_FORWARD]
        self._foreseen = self._foreseen[NODES_PER_FORWARD:]
        return self._forward(nodes) if nodes or self.cache.is_empty else None

    def _forward(self, nodes: list[int]) -> TreeForward:
        forward = self.cache.add(nodes)
        self.counts.num_forwards += 1
        self.counts.num_nodes += len(forward.token_ids)
        return forward

    def take(self, nodes: list[int], hidden: Tensor) -> None:
        """Keep the hidden states (len(nodes), D) of nodes whose distribution may be asked for."""
        # Those alive from the end of the trunk on, or from where masses are counted if that is
        # before it; copies, as others are not kept.
        depth, is_alive = self.tree.depth, self.tree.is_alive
        least = min(len(self.tree.trunk()), *(depth[node] for node in self.marginals.log_mass))
        may_ask = {n for n in (*self.hidden, *nodes) if is_alive(n) and depth[n] >= least}
        new = zip(nodes, torch.split(hidden, 1), strict=True)
        self.hidden = {node: kept for node, kept in self.hidden.items() if node in may_ask}
        self.hidden |= {node: row.clone() for node, row in new if node in may_ask}
        self.logits = {node: kept for node, kept in self.logits.items() if node in may_ask}
        self._has_logits &= may_ask

    def take_logits(self, nodes: Iterable[int], logits: Iterable[Tensor]) -> None:
        """Keep the next logits, (1, V) each, until the nodes' distributions are asked for."""
        for node, row in zip(nodes, logits, strict=False):
            self.logits[node] = row
            self._has_logits.add(node)

    def without_logits(self, wanted: list[int], number: int = LOGITS_AT_ONCE) -> list[int]:
        """Nodes for the output layer: if `wanted` ones lack logits, others go with them.

        number: of nodes, unless more are wanted; a few rows cost less than reading the weights.
        """
        needed = [node for node in wanted if node not in self.logits]
        others = (n for n in self.hidden if n not in self._has_logits and n not in needed)
        return [*needed, *islice(others, max(0, number - len(needed)))] if needed else []

    def add_distribution(self, node: int, following: NodeDistribution) -> None:
        """Learn what follows a node."""
        del self.logits[node]
        self.marginals.add_distribution(node, following)
        self._uncounted.append((self.marginals.log_mass[node], following.masked_mass))

    def log_probs(self) -> Array:
        """log q of the next symbol: (257,) float64; -inf where nothing follows, NaN where broken.

        A text to which the distributions give no probability at all is its newest node.
        """
        masses, total = self.marginals.log_masses()
        # What masking took counts by the node's share of the text's mass.
        for log_mass, masked_mass in self._uncounted:
            share = math.exp(min(0.0, log_mass - total)) if total > -math.inf else 0.0
            self.counts.weight += share
            self.counts.masked_mass += share * masked_mass
        self._uncounted.clear()
        if not self.is_over and total == -math.inf:
            self.marginals.restart()
            masses, total = self.marginals.log_masses()
        if self.is_over or total == -math.inf:
            return np.full(NUM_SYMBOLS, -math.inf)
        return masses - total

    @property
    def size(self) -> float:
        """The size of the token logits that the next byte follows from, weighted by mass.

        A head has the errors of its distribution and, where other heads share the mass, of those on
        the way to it, which decide between them. Their errors add up by their squares.
        """
        tree, marginals, square = self.tree, self.marginals, 0.0
        total = marginals.log_masses()[1]
        shared = len(tree.trunk())  # tokens of all heads, whose mass is no matter
        for node, prefix in tree.heads:
            if node not in marginals.distributions or total == -math.inf:
                continue
            reach = marginals.log_mass[node] + marginals.distributions[node].log_reach(prefix)
            share = math.exp(min(0.0, reach - total))
            square += share * self.sizes[node] ** 2
            while tree.depth[node] > shared:
                node = tree.parent[node]
                square += share * ((1.0 - share) * self.sizes.get(node, 0.0)) ** 2
        return math.sqrt(square)

    def seen(self, node: int) -> list[int]:
        """The tokens of a node's path and the start tokens, in no order."""
        tree, trunk = self.tree, self.tree.trunk()
        path = [*tree.vocabulary.start_token_ids]
        while tree.depth[node] > len(trunk):
            path.append(tree.token[node])
            node = tree.parent[node]
        return path + [tree.token[shared] for shared in trunk[: tree.depth[node]]]

    def compact(self) -> tuple[int, list[int]] | None:
        """Slots that the cache should keep (TreeCache.compact); None while few are dead."""
        cache = self.cache
        limit = min(MAX_DEAD_SLOTS, cache.num_slots // 4)
        if cache.num_slots - cache.num_causal <= limit or cache.num_dead <= limit:
            return None
        return cache.compact()


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt as one model has read it: a row that nothing was appended to."""

    row: ByteRow
    states: list[tuple[Tensor, Tensor]]
    """Keys and values by layer, (H, slots, D) each."""
    token_log_probs: Tensor
    """Log-probabilities of its bytes but the first, as `PromptLogits` has them."""

    @property
    def num_bytes(self) -> int:
        return sum(keys.nbytes + values.nbytes for keys, values in self.states)


class PromptCache:
    """The prompts read last, of any models; the least recently used ones make room.

    It holds the keys and values of each prompt's tokens, on their models' devices, with the
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
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self.max_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self.num_bytes -= oldest.num_bytes
