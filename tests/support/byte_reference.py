"""The law of the next byte by its definition: every node of the tree is a forward of its own."""

import math

import numpy as np
import torch
from byte_streams import grown, path_of
from numpy.typing import ArrayLike
from torch import Tensor

from anchored.decode.byte.node_law import NodeLaw, allowed_in_order, log_sum, node_laws
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.models.stream import UNSCORED, PromptLogits
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.viability import ViabilityState
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from anchored.decode.warpers import Warpers

UNWARPED = SamplingConfig(temperature=1.0, repetition_penalty=1.0)


def node_law(vocabulary: ByteVocabulary, state: ViabilityState, row: ArrayLike) -> NodeLaw:
    """The law of one node, in float64."""
    logits = torch.from_numpy(np.asarray(row, np.float64))
    return next(node_laws(vocabulary, [state], logits[None]))


class ReferenceStream:
    """A Stream over bytes without caches: exact, and slow.

    Where truncation leaves the text no probability, its newest nodes alone are what goes on.
    """

    vocab_size = NUM_SYMBOLS

    def __init__(
        self,
        model,
        vocabulary: ByteVocabulary,
        *,
        num_rows: int,
        sampling: SamplingConfig = UNWARPED,
    ) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.warpers = Warpers(sampling, vocabulary.stop_token_ids.tolist())
        self.trees: list[TokenTree | None] = [None] * num_rows
        self.known: list[dict[int, float]] = [{} for _ in range(num_rows)]

    def read(self, prompts: list[list[int]], rows: list[int]) -> PromptLogits:
        for prompt, row in zip(prompts, rows, strict=True):
            self.trees[row] = tree = grown(self.vocabulary, prompt)
            self.known[row] = {(tree.trunk() or [ROOT_NODE])[-1]: 0.0}
        logits = torch.stack([self.log_probs(row) for row in rows])
        return PromptLogits(logits, [UNSCORED] * len(rows), num_forwards=1)

    def walk(self, text: list[int]) -> Tensor:
        """(len(text), 257) after each byte of a text that row 0 reads from nothing."""
        self.read([[]], [0])
        return self.feed(torch.tensor([text]), torch.ones(1, len(text), dtype=torch.long))[0]

    def feed(self, token_ids: Tensor, mask: Tensor) -> Tensor:
        logits = torch.zeros(*token_ids.shape, NUM_SYMBOLS, dtype=torch.float64)
        for row, column in mask.nonzero().tolist():
            self.trees[row].append(int(token_ids[row, column]))
            logits[row, column] = self.log_probs(row)
        return logits

    def free(self, row: int) -> None:
        self.trees[row] = None

    def raw_logits(self, paths) -> np.ndarray:
        """(number, vocab_size) after token sequences, in float64."""
        with torch.inference_mode():
            rows = [self.model(torch.tensor([path])).logits[0, -1] for path in paths]
        return torch.stack(rows).double()[:, : self.vocabulary.vocab_size].numpy()

    def warped_logits(self, path, state) -> np.ndarray:
        """Logits of what may follow alone: the rest is banned before a truncation counts tokens."""
        allowed = allowed_in_order(self.vocabulary, [state])[0]
        logits = torch.from_numpy(self.raw_logits([path]))
        logits[0, self.vocabulary.ordered_tokens[~allowed]] = -math.inf
        seen = torch.zeros(1, self.vocabulary.vocab_size, dtype=torch.bool)
        seen[0, list(path)] = True
        return self.warpers(logits, seen)[0].numpy()

    def log_probs(self, row: int) -> Tensor:
        """(257,) float64: log q(x | text), NaN where the model's logits are."""
        tree = self.trees[row]
        laws = {}

        def law(node: int):
            if node not in laws:
                path = (*self.vocabulary.start_token_ids, *path_of(tree, node))
                logits = self.warped_logits(path, tree.state[node])
                laws[node] = node_law(self.vocabulary, tree.state[node], logits)
            return laws[node]

        def log_mass(node: int) -> float:
            if node in self.known[row]:
                return self.known[row][node]
            parent = tree.parent[node]
            return log_mass(parent) + law(parent).of_token(tree.token[node])

        def masses() -> np.ndarray:
            heads = [self._of_head(law(node), p, log_mass(node)) for node, p in tree.heads]
            return np.logaddexp.reduce(heads)

        try:
            if log_sum(masses()) == -math.inf:
                self.known[row] = {n: 0.0 if p == ROOT else -math.inf for n, p in tree.heads}
            return torch.from_numpy(masses() - log_sum(masses()))
        except ValueError:
            return torch.full((NUM_SYMBOLS,), math.nan, dtype=torch.float64)

    def _of_head(self, law, prefix: int, log_mass: float) -> np.ndarray:
        trie, masses = self.vocabulary.trie, np.full(NUM_SYMBOLS, -math.inf)
        masses[trie.symbol[trie.children(prefix)]] = log_mass + law.log_children(prefix)
        if prefix == ROOT:
            masses[END_SYMBOL] = log_mass + law.log_end
        return masses
