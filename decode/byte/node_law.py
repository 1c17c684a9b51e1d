"""What follows one node: its next-token distribution over the rows of the trie, and the end."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from .byte_trie import ByteTrie
from .byte_vocabulary import ByteVocabulary
from .log_sums import Array, log_sum, segment_log_sums
from .viability import Standing

Mode = Literal["masked", "raw"]
"""masked: only tokens that keep the sequence viable. raw: all that keep the text UTF-8."""


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """Log-probabilities, in nats, that together with the end sum to one (all -inf: a dead end).

    log_probs: (V,) float64 by row of the trie. log_end: of ending the text, -inf where it may not.
    log_kept: share of the model's own mass that was kept, 0.0 if all of it.
    """

    trie: ByteTrie
    log_probs: Array
    log_end: float
    log_kept: float

    def of_token(self, token: int) -> float:
        """Log-probability of one token."""
        return float(self.log_probs[self.trie.row_of[token]])

    def log_beyond(self, prefix: int) -> float:
        """Log-probability of all tokens that start with a trie node's prefix and are longer."""
        low = int(self.trie.low[prefix]) + int(self.trie.num_ends[prefix])
        return log_sum(self.log_probs[low : int(self.trie.high[prefix])])

    def log_within(self, prefix: int) -> float:
        """Log-probability of all tokens that start with a trie node's prefix."""
        return log_sum(self.log_probs[int(self.trie.low[prefix]) : int(self.trie.high[prefix])])

    def log_children(self, prefix: int) -> Array:
        """The same by next byte: one entry for each child of the trie node, float64."""
        low = int(self.trie.low[prefix]) + int(self.trie.num_ends[prefix])
        starts = self.trie.low[self.trie.children(prefix)].astype(np.int64) - low
        return segment_log_sums(self.log_probs[low : int(self.trie.high[prefix])], starts)


def node_law(
    vocabulary: ByteVocabulary, standing: Standing, log_probs: ArrayLike, mode: Mode = "masked"
) -> NodeLaw:
    """Restrict a model's next-token distribution to what may follow, and renormalise it.

    log_probs: (at least vocab_size,) log-probabilities or logits, any float dtype, -inf = banned.
    All stop tokens count as one end. Raises ValueError for NaN or a wrong length.
    """
    scores = np.asarray(log_probs, np.float64)
    if scores.ndim != 1 or len(scores) < vocabulary.vocab_size or np.isnan(scores).any():
        raise ValueError(f"log_probs must be ({vocabulary.vocab_size},) numbers without NaN")
    viability = vocabulary.viability
    allowed = viability.allowed(standing) if mode == "masked" else viability.well_formed(standing)
    rows = np.where(allowed, scores[vocabulary.trie.tokens], -math.inf)
    may_end = viability.may_end(standing)
    log_end = log_sum(scores[vocabulary.stop_token_ids]) if may_end else -math.inf
    total = float(np.logaddexp(log_sum(rows), log_end))
    shift = 0.0 if total == -math.inf else total
    return NodeLaw(vocabulary.trie, rows - shift, log_end - shift, total - log_sum(scores))
