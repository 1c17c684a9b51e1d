"""One prompt while a model reads it, its trunk first, then the nodes beside it; prompts kept."""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.stream import UNSCORED
from ..tokenizer.vocabulary import ByteVocabulary
from .byte_row import NODES_PER_FORWARD, ByteRow
from .node_law import NodeLaw, log_sum, node_laws
from .settings import ByteCounts
from .token_tree import ROOT_NODE, TokenTree
from .tree_cache import TreeCache, TreeForward


class BytePrompt:
    """The tree of a prompt, its nodes as they are computed, the log-probabilities of its bytes.

    The trees of all prefixes together have about one node a byte, three of four beside the trunk.
    All of them are needed for the log-probabilities, else only those that the next byte depends on.
    A law is read once, along the text: how much of it goes on at all behind each prefix that its
    node is a head of, and how much with the next byte.
    """

    def __init__(
        self, vocabulary: ByteVocabulary, text: bytes, *, is_scored: bool, reach: int
    ) -> None:
        """is_scored: whether log-probabilities of its bytes are wanted. reach: positions that the
        model has. Where beginnings of a last word take more of them than the word, nothing is known
        of the bytes (`is_outgrown`).

        Raises ValueError at a byte that cannot follow the ones before it.
        """
        # 1. Grow the tree: nodes that die on the way still count for the bytes before.
        self._text, self._is_scored = text, is_scored
        self.tree = tree = TokenTree(vocabulary)
        self._states = dict(tree.state)
        self._heads: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        """By node: the lengths of the prefixes that it is a head of, and what it lacks of each."""
        for length, byte in enumerate(text):
            for node, prefix in tree.heads if is_scored and length else ():
                self._heads[node].append((length, prefix))
            self._states.update((node, tree.state[node]) for node in tree.append(byte))
        self._children: defaultdict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(tree.parent[1:], 1):
            self._children[parent].append(node)
        # 2. What is to be computed: parents first, and the trunk before what lies beside it.
        self.cache = TreeCache(tree)
        trunk = tree.trunk()
        self._on_trunk = {ROOT_NODE, *trunk}
        self._last = trunk[-1] if trunk else ROOT_NODE
        beside = (node for node in range(len(tree)) if is_scored or tree.is_alive(node))
        nodes = [*trunk, *(node for node in beside if node not in self._on_trunk)]
        self._remaining = [node for node in nodes if self.cache.position(node) < reach]
        self.is_outgrown = is_scored and len(self._remaining) < len(nodes)
        self.num_tokens = len(vocabulary.start_token_ids) + len(trunk)
        """Tokens of the start and the trunk."""
        self.counts = ByteCounts()
        # 3. What later bytes may ask for, (1, D) and as far as it is known (1, V), by node; and the
        #    sums along the text.
        self.hidden: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}
        self._log_mass = {ROOT_NODE: 0.0}
        self._terms: list[list[tuple[float, float]]] = [[] for _ in text]
        """By length of the prefix: of each head, log mass with the next byte and in all."""

    def next_forward(self) -> TreeForward | None:
        """The next nodes, in the first forward behind the start tokens; None when all are read."""
        nodes = self._remaining[:NODES_PER_FORWARD]
        if self.counts.num_forwards and not nodes:
            return None
        del self._remaining[:NODES_PER_FORWARD]
        forward = self.cache.add(nodes)
        self.counts.num_forwards += 1
        self.counts.num_nodes += len(forward.token_ids)
        return forward

    def take(self, nodes: list[int], hidden: Tensor) -> None:
        """Keep the hidden states (len(nodes), D) that later bytes may ask for."""
        for node, row in zip(nodes, torch.split(hidden, 1), strict=True):
            is_beside = self.tree.is_alive(node) and node not in self._on_trunk
            if is_beside or node == self._last:
                self.hidden[node] = row.clone()

    def take_logits(self, nodes: list[int], logits: Tensor) -> None:
        """Learn the laws (len(nodes), V); keep copies of what later bytes may ask for."""
        for node, row in zip(nodes, torch.split(logits, 1), strict=True):
            if node in self.hidden:
                self.logits[node] = row.clone()
        states = [self._states[node] for node in nodes]
        for node, law in zip(nodes, node_laws(self.tree.vocabulary, states, logits), strict=True):
            self._learn(node, law)

    def _learn(self, node: int, law: NodeLaw) -> None:
        log_mass, trie = self._log_mass[node], self.tree.vocabulary.trie
        for child in self._children[node]:
            self._log_mass[child] = log_mass + law.of_token(self.tree.token[child])
        for length, prefix in self._heads[node]:
            longer, going_on = trie.child(prefix, self._text[length]), -math.inf
            if longer >= 0:
                going_on = law.log_children(prefix)[longer - trie.children(prefix).start]
            self._terms[length].append((log_mass + going_on, log_mass + law.log_reach(prefix)))

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
        """(bytes - 1,) float64: log q of each byte but the first, or (0,) where none are wanted.

        A text without any mass gives every byte none.
        """
        if not self._is_scored:
            return UNSCORED
        if self.is_outgrown:
            return torch.full((len(self._text) - 1,), torch.nan, dtype=torch.float64)
        sums = (map(log_sum, np.array(terms).T) for terms in self._terms[1:])
        log_probs = [onto - whole if whole > -math.inf else whole for onto, whole in sums]
        return torch.tensor(log_probs, dtype=torch.float64)


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
