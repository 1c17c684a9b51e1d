"""The exact distribution of the next byte under a token-level model, without the model."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from byte_streams import path_of
from numpy.typing import ArrayLike

from anchored.decode.byte.node_law import Array, NodeLaw, TreeMarginals, log_sum, node_laws
from anchored.decode.byte.prompt import PathSums
from anchored.decode.byte.token_tree import TokenTree
from anchored.decode.tokenizer.viability import ViabilityState
from anchored.decode.tokenizer.vocabulary import ByteVocabulary

TokenLogProbs = Callable[[Sequence[Sequence[int]]], ArrayLike]
"""Token sequences, start tokens included, to next-token log-probabilities (number, vocab_size)."""


class ByteMarginals:
    """Distributions over 256 bytes and the end (symbol 256), for a text that grows byte by byte.

    With W(b) the probability that the text starts with b, q(x | b) = W(bx) / W(b). The W(bx) and
    W(b end) sum to W(b) up to `leak`, so products of q telescope: q is the law of the text when
    tokens are drawn among the viable ones.
    Source: Phan et al. 2024, "Exact Byte-Level Probabilities from Tokenized Language Models".
    """

    def __init__(self, vocabulary: ByteVocabulary, token_log_probs: TokenLogProbs) -> None:
        self.vocabulary = vocabulary
        self.tree = TokenTree(vocabulary)
        self._marginals = TreeMarginals(self.tree)
        self._token_log_probs = token_log_probs
        self._log_prefix = 0.0
        self._log_masses: Array | None = None

    def append(self, byte: int) -> None:
        """Grow the text. Raises ValueError, and changes nothing, if `byte` cannot follow it."""
        log_prefix = float(self.log_masses()[byte])
        self._marginals.append(byte)
        self._log_prefix, self._log_masses = log_prefix, None

    def extend(self, text: Iterable[int]) -> None:
        """Append many bytes, one by one."""
        for byte in text:
            self.append(byte)

    def log_masses(self) -> Array:
        """log W(bx) for each next symbol x of the text b: (257,) float64, nats."""
        if self._log_masses is None:
            self._evaluate()
            self._log_masses = self._marginals.log_masses()[0]
        return self._log_masses

    def log_probs(self) -> Array:
        """log q(x | b) over the 257 symbols: float64, normalised to within 1e-12."""
        return self.log_masses() - log_sum(self.log_masses())

    @property
    def log_prefix(self) -> float:
        """log W(b) of the text so far, in nats."""
        return self._log_prefix

    @property
    def leak(self) -> float:
        """1 - (sum of all W(bx)) / W(b): the share of mass in dead ends."""
        return -math.expm1(log_sum(self.log_masses()) - self._log_prefix)

    def _evaluate(self) -> None:
        missing = self._marginals.missing()
        if not missing:
            return
        start = self.vocabulary.start_token_ids
        paths = [(*start, *path_of(self.tree, node)) for node in missing]
        scores = np.asarray(self._token_log_probs(paths), np.float64)
        for node, row in zip(missing, scores, strict=True):
            law = node_law(self.vocabulary, self.tree.state[node], row)
            self._marginals.add_law(node, law)


def node_law(vocabulary: ByteVocabulary, state: ViabilityState, row: ArrayLike) -> NodeLaw:
    """The law of one node, in float64."""
    logits = torch.from_numpy(np.asarray(row, np.float64))
    return next(node_laws(vocabulary, [state], logits[None]))


def byte_log_probs(
    vocabulary: ByteVocabulary,
    text: bytes,
    token_log_probs: TokenLogProbs,
    *,
    chunk_size: int = 64,
) -> Array:
    """log q(byte | bytes before it) of each byte of `text`, and of the end behind it, in nats.

    token_log_probs: asked once per `chunk_size` nodes; NaN among its numbers gives NaN. Returns:
    (len(text) + 1,) float64, equal to that of `ByteMarginals` byte by byte. Raises ValueError at a
    byte that cannot follow.
    """
    sums = PathSums(vocabulary, text)
    tree = sums.tree
    for start in range(0, len(tree), chunk_size):
        nodes = range(start, min(start + chunk_size, len(tree)))
        paths = [(*vocabulary.start_token_ids, *path_of(tree, node)) for node in nodes]
        rows = np.asarray(token_log_probs(paths), np.float64)
        sums.add(nodes, torch.from_numpy(rows))
    return sums.log_probs()
