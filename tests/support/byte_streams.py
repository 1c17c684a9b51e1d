"""Byte-level streams of tiny models, texts to feed them, and the next byte by its definition.

By the definition every node of the tree is a forward by itself.
"""

import copy
import math
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from tiny_models import FAMILIES
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from anchored.decode.byte import node_distribution as nodes
from anchored.decode.byte.byte_stream import ByteStream
from anchored.decode.byte.token_tree import ROOT_NODE, TokenTree
from anchored.decode.settings import UNWARPED, SamplingConfig
from anchored.decode.streams.capabilities import row_attention
from anchored.decode.streams.row_stream import ModelRunner
from anchored.decode.tokenizer.trie import ROOT
from anchored.decode.tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS, ByteVocabulary
from anchored.decode.warpers import Warpers

ENDS = ("<|end|>", "<|endoftext|>", "<|end_of_text|>")
PROMPT = "the harbour's  12345 \n\n\t caf\u00e9 "
CONTINUATION = " I'll  go\n\u4e2d 12!"


@cache
def vocabulary_of(tokenizer: Tokenizer) -> ByteVocabulary:
    ends = map(tokenizer.token_to_id, ENDS)
    return ByteVocabulary(tokenizer, [end for end in ends if end is not None])


def model_of(vocabulary: ByteVocabulary, name: str = "llama", seed: int = 1):
    config = copy.deepcopy(FAMILIES[name])
    config.update({"vocab_size": vocabulary.vocab_size, "max_position_embeddings": 1024})
    if name == "llama4_text":
        config.floor_scale = 1025
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config).double().eval()


def stream_of(model, vocabulary: ByteVocabulary, **changes) -> ByteStream:
    runner = ModelRunner(model, vocabulary.vocab_size)
    changes.setdefault("warp", Warpers(UNWARPED, vocabulary.stop_columns))
    return ByteStream(runner, row_attention(model), vocabulary, num_rows=3, **changes)


def bytes_of(vocabulary: ByteVocabulary, text: str) -> list[int]:
    return list(vocabulary.normalize(text))


def grown(vocabulary: ByteVocabulary, text: Iterable[int]) -> TokenTree:
    tree = TokenTree(vocabulary)
    for byte in text:
        tree.append(byte)
    return tree


def path_of(tree: TokenTree, node: int) -> list[int]:
    """The tokens of a node, first to last."""
    tokens = []
    while node != ROOT_NODE:
        tokens.append(tree.token[node])
        node = tree.parent[node]
    return tokens[::-1]


def closed_path(tree: TokenTree) -> list[int] | None:
    """The tokenization of the whole text, if the text may end here."""
    may_end = tree.vocabulary.viability.may_end
    ends = (h.node for h in tree.heads if h.prefix == ROOT and may_end(tree.state[h.node]))
    return next((path_of(tree, node) for node in ends), None)


def feed(stream: ByteStream, texts: dict[int, list[int]]) -> dict[int, Tensor]:
    """Feed whole texts to some rows in one call; returns (bytes, 257) by row."""
    logits = stream.feed([*texts], [*texts.values()], max(map(len, texts.values())))
    pairs = zip(texts.items(), logits, strict=True)
    return {row: values[len(values) - len(text) :] for (row, text), values in pairs}


def feed_byte_by_byte(stream: ByteStream, row: int, text: list[int]) -> Tensor:
    return torch.cat([feed(stream, {row: [byte]})[row] for byte in text])


def assert_same(actual: Tensor, expected: Tensor, *, rtol: float = 1e-9) -> None:
    torch.testing.assert_close(actual.exp(), expected.exp(), rtol=rtol, atol=0)


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
            tokens = torch.tensor([[*self.vocabulary.start_token_ids, *path]])
            row = self.model(tokens).logits[:, -1]
        return row[:, : self.vocabulary.vocab_size].double()

    def distribution(self, node: int) -> nodes.NodeDistribution:
        """Warped over the tokens that may follow: others are banned before a truncation counts."""
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
