"""The next byte's distribution by definition: every node of the tree is a forward by itself."""

import math
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from byte_streams import grown, path_of
from torch import Tensor

from anchored.decode.byte import node_distribution as nodes
from anchored.decode.byte.token_tree import ROOT_NODE
from anchored.decode.settings import SamplingConfig
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from anchored.decode.warpers import Warpers

UNWARPED = SamplingConfig(temperature=1.0, repetition_penalty=1.0)


class ReferenceDistributions:
    """The distributions of the next byte of one growing text, without caches: exact, and slow.

    Where truncation leaves the text no probability, its newest nodes alone are what goes on.
    """

    def __init__(
        self, model, vocabulary: ByteVocabulary, sampling: SamplingConfig = UNWARPED
    ) -> None:
        self.model, self.vocabulary = model, vocabulary
        self.warpers = Warpers(sampling, vocabulary.stop_token_ids.tolist())

    def read(self, prompt: Iterable[int]) -> Tensor:
        """(257,) after a text that is read from nothing."""
        self.tree = grown(self.vocabulary, prompt)
        self.known = {(self.tree.trunk() or [ROOT_NODE])[-1]: 0.0}
        return self.log_probs()

    def append(self, byte: int) -> Tensor:
        """(257,) after one byte more."""
        self.tree.append(byte)
        return self.log_probs()

    def walk(self, text: Iterable[int]) -> Tensor:
        """(len(text), 257) after each byte of a text that is read from nothing."""
        self.read([])
        return torch.stack([self.append(byte) for byte in text])

    def raw_logits(self, path) -> Tensor:
        """(1, vocab_size) after a token sequence after the start tokens, in float64."""
        with torch.inference_mode():
            row = self.model(torch.tensor([[*self.vocabulary.start_token_ids, *path]])).logits[
                :, -1
            ]
        return row[:, : self.vocabulary.vocab_size].double()

    def distribution(self, node: int) -> nodes.NodeDistribution:
        """Of what may follow alone: the rest is banned before a truncation counts tokens."""
        path, state = path_of(self.tree, node), self.tree.state[node]
        logits = self.raw_logits(path).clone()
        allowed = nodes.allowed_in_order(self.vocabulary, [state])[0]
        logits[0, self.vocabulary.ordered_tokens[~allowed]] = -math.inf
        seen = torch.zeros(1, self.vocabulary.vocab_size, dtype=torch.bool)
        seen[0, [*self.vocabulary.start_token_ids, *path]] = True
        warped = self.warpers(logits, seen)[:, self.vocabulary.ordered_tokens]
        return next(nodes.node_distributions(self.vocabulary, [state], warped))

    def log_probs(self) -> Tensor:
        """(257,) float64: log q(x | text)."""
        distribution, tree = cache(self.distribution), self.tree

        def log_mass(node: int) -> float:
            if node in self.known:
                return self.known[node]
            parent = tree.parent[node]
            return log_mass(parent) + distribution(parent).of_token(tree.token[node])

        def masses() -> np.ndarray:
            heads = [self._of_head(distribution(node), p, log_mass(node)) for node, p in tree.heads]
            return np.logaddexp.reduce(heads)

        if nodes.log_sum(masses()) == -math.inf:
            self.known = {n: 0.0 if p == ROOT else -math.inf for n, p in tree.heads}
        return torch.from_numpy(masses() - nodes.log_sum(masses()))

    def _of_head(
        self, distribution: nodes.NodeDistribution, prefix: int, log_mass: float
    ) -> np.ndarray:
        trie, masses = self.vocabulary.trie, np.full(NUM_SYMBOLS, -math.inf)
        masses[trie.symbol[trie.children(prefix)]] = log_mass + distribution.log_children(prefix)
        if prefix == ROOT:
            masses[END_SYMBOL] = log_mass + distribution.log_end
        return masses
