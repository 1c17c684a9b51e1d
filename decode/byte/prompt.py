"""One prompt while a model reads it, its trunk first, then the nodes beside it; prompts kept."""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..models.stream import UNSCORED
from ..tokenizer.vocabulary import ByteVocabulary
from .byte_row import NODES_PER_FORWARD, ByteRow
from .path_sums import PathSums
from .settings import ByteCounts, ByteEvaluation
from .token_tree import ROOT_NODE, TokenTree
from .tree_cache import TreeCache, TreeForward

LEAST_SHARE = 0.5
"""Of the text's mass: nodes with less are left to bounds on the log-probabilities. One forward
computes the others; a second one would cost as much again and gain a quarter of it."""


class BytePrompt:
    """The tree of a prompt and the sums along it that give the log-probabilities of its bytes.

    The trunk is read causally. Beside it lie about three nodes a token: all of them are needed
    for exact log-probabilities, for bounds on these the few that hold much of the text's mass
    somewhere, else only those that the next byte depends on.
    """

    def __init__(
        self,
        vocabulary: ByteVocabulary,
        text: bytes,
        evaluation: ByteEvaluation,
        *,
        is_partial: bool = False,
    ) -> None:
        """is_partial: others will say which nodes beside the trunk are needed for its scores.

        Raises ValueError at a byte that cannot follow the ones before it.
        """
        self.text, self.evaluation, self._is_partial = text, evaluation, is_partial
        self.sums: PathSums | None = None
        if evaluation.prompt_scores == "none":
            self.tree = TokenTree(vocabulary)
            self.tree.extend(text)
        else:
            self.sums = PathSums(vocabulary, text, evaluation.mode)
            self.tree = self.sums.tree
        self.cache = TreeCache(self.tree)
        self.trunk = [ROOT_NODE, *self.cache.add_trunk()]
        self.counts = ByteCounts(num_forwards=1, num_nodes=len(self.trunk_token_ids))
        self._settled = set(self.trunk)
        self._remaining = self.cache.missing(head.node for head in self.tree.heads)
        if evaluation.prompt_scores == "exact" and not is_partial:
            self._remaining = [n for n in range(len(self.tree)) if n not in self._settled]
        self._tightens = evaluation.prompt_scores in ("upper", "lower") and not is_partial
        self._hidden: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}
        """(1, V) of nodes that later bytes may ask for, as far as they are known."""

    @property
    def trunk_token_ids(self) -> list[int]:
        """Start tokens and the trunk's."""
        start = self.tree.vocabulary.start_token_ids
        return [*start, *(self.tree.token[node] for node in self.trunk[1:])]

    @property
    def num_first(self) -> int:
        """Token positions of the first forward."""
        return len(self.trunk_token_ids) + (len(self._remaining) if self.is_short else 0)

    @property
    def is_short(self) -> bool:
        """One forward with a mask of ancestors computes the trunk and all beside it."""
        return len(self.trunk_token_ids) + len(self._remaining) <= NODES_PER_FORWARD

    def whole_forward(self) -> TreeForward:
        """That forward, start tokens included; its last nodes are those beside the trunk."""
        nodes, self._remaining = self._remaining, []
        self.counts.num_nodes += len(nodes)
        return self.cache.behind_settled(self.cache.add(nodes))

    def take(self, nodes: list[int], hidden: Tensor) -> None:
        """Keep the hidden states (len(nodes), D) that later bytes may ask for."""
        last = self.trunk[-1]
        for node, state in zip(nodes, torch.split(hidden, 1), strict=True):
            if node == last or (self.tree.is_alive(node) and node not in self._settled):
                self._hidden[node] = state.clone()

    def keep_logits(self, nodes: list[int], logits: Tensor) -> None:
        """Copy those of (len(nodes), V) that later bytes may ask for."""
        for node, row in zip(nodes, torch.split(logits, 1), strict=True):
            if node in self._hidden:
                self.logits[node] = row.clone()

    def next_forward(self) -> TreeForward | None:
        """The next nodes beside the trunk; None when all are computed."""
        if not self._remaining and self._tightens and self.sums is not None:
            self._tightens = False
            self._remaining = self.sums.known().likely_nodes(LEAST_SHARE)
        nodes = self._remaining[:NODES_PER_FORWARD]
        self._remaining = self._remaining[NODES_PER_FORWARD:]
        if not nodes:
            return None
        self.counts.num_forwards += 1
        self.counts.num_nodes += len(nodes)
        return self.cache.add(nodes)

    def compact(self) -> tuple[int, list[int]]:
        """Drop what neither later nodes nor later bytes attend to; see TreeCache.compact."""
        needed: set[int] = set()
        for node in self._remaining:
            parent = self.tree.parent[node]
            while parent in self.cache and parent not in needed and parent not in self._settled:
                needed.add(parent)
                parent = self.tree.parent[parent]
        return self.cache.compact(needed)

    def log_probs(self) -> Tensor:
        """(bytes - 1,) float64: log q of each byte but the first, or (0,) where none are wanted.

        Bounds on them where the reading is partial.
        """
        if self.sums is None:
            return torch.empty(0, dtype=torch.float64)
        known = self.sums.known()
        values = known.low if self.evaluation.prompt_scores == "lower" else known.high
        return torch.from_numpy(values[1:-1])

    def row(self, reach: int) -> ByteRow:
        """The row that goes on from the prompt, up to `reach` positions."""
        row = ByteRow(self.cache, self.counts, self.evaluation, reach)
        row.hidden = self._hidden
        return row


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt as one model has read it: a row that nothing was appended to."""

    row: ByteRow
    states: list[tuple[Tensor, Tensor]]
    """Keys and values by layer, (H, slots, D) each."""
    token_log_probs: Tensor
    """Of its bytes but the first, as `PromptLogits` has them."""
    sums: PathSums | None = None
    """What is known of its nodes' laws, where the reading is partial."""

    @property
    def num_bytes(self) -> int:
        """Memory of the keys and values."""
        return sum(keys.nbytes + values.nbytes for keys, values in self.states)


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
        self.num_bytes += prompt.num_bytes
        while self.num_bytes > self.max_bytes:
            _, oldest = self._prompts.popitem(last=False)
            self.num_bytes -= oldest.num_bytes


@dataclass(frozen=True, slots=True)
class PromptShelf:
    """A cache as one stream uses it."""

    cache: PromptCache
    owner: Hashable = ()
    """What decides how a model reads, beside the prompt."""
    scored: tuple["PromptShelf", ...] = ()
    """Where the same prompts lie with log-probabilities that this owner does not ask for."""

    @property
    def keeps(self) -> bool:
        """Whether anything is ever kept."""
        return self.cache.max_bytes > 0

    def get(self, text: bytes) -> ReadPrompt | None:
        own = self.cache.get((self.owner, text))
        for shelf in self.scored if own is None else ():
            if (more := shelf.get(text)) is not None:
                return replace(more, token_log_probs=UNSCORED, sums=None)
        return own

    def put(self, text: bytes, prompt: ReadPrompt) -> None:
        self.cache.put((self.owner, text), prompt)
