"""What follows one node: its next-token distribution over the rows of the trie, and the end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .byte_trie import ByteTrie
from .byte_vocabulary import ByteVocabulary
from .log_sums import Array, log_sum, segment_log_sums
from .viability import Standing

# N nodes, V tokens of the vocabulary, rows of the trie.

Mode = Literal["masked", "raw"]
"""masked: only tokens that keep the sequence viable. raw: all that keep the text UTF-8."""

NUM_TINY = 1e4
"""Weights below so many times the smallest normal number are too small for sums: those are then
taken on the scale of their own maximum."""


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """Log-probabilities, in nats, that together with the end sum to one (all -inf: a dead end).

    logits: (V,) by token. allowed: (V,) bool by row of the trie. weights: (V,) by row,
    exp(logit - top), 0 where not allowed; `is_wide` says that some allowed ones are too small for
    sums. log_total: log of the mass kept, on the scale of the logits. log_end: of ending the text,
    -inf where it may not. log_kept: share of the model's own mass that was kept, 0.0 if all of it.
    """

    trie: ByteTrie
    logits: NDArray[np.floating]
    allowed: NDArray[np.bool_]
    weights: NDArray[np.floating]
    is_wide: bool
    top: float
    log_total: float
    log_end: float
    log_kept: float

    @property
    def masked_mass(self) -> float:
        """Share of the model's own mass that was not kept; 0.0 for a law that is none."""
        return -math.expm1(self.log_kept) if math.isfinite(self.log_kept) else 0.0

    def of_token(self, token: int) -> float:
        """Log-probability of one token."""
        is_allowed = self.allowed[self.trie.row_of[token]]
        return float(self.logits[token]) - self.log_total if is_allowed else -math.inf

    def log_beyond(self, prefix: int) -> float:
        """Log-probability of all tokens that start with a trie node's prefix and are longer."""
        low = int(self.trie.low[prefix]) + int(self.trie.num_ends[prefix])
        return self._log_sum(low, int(self.trie.high[prefix]))

    def log_within(self, prefix: int) -> float:
        """Log-probability of all tokens that start with a trie node's prefix."""
        return self._log_sum(int(self.trie.low[prefix]), int(self.trie.high[prefix]))

    def log_children(self, prefix: int) -> Array:
        """The same by next byte: one entry for each child of the trie node, float64."""
        if self.is_wide:
            low, high, starts = self._children(prefix)
            return segment_log_sums(self._scores(low, high), starts) - self.log_total
        with np.errstate(divide="ignore"):
            logs: Array = np.log(self.children(prefix))
        return logs

    def children(self, prefix: int) -> Array:
        """Probabilities by next byte, as `log_children`."""
        if self.is_wide:
            return np.exp(self.log_children(prefix))
        low, high, starts = self._children(prefix)
        sums: Array = np.add.reduceat(self.weights[low:high], starts, dtype=np.float64)
        sums *= math.exp(self.top - self.log_total)
        return sums

    def _children(self, prefix: int) -> tuple[int, int, NDArray[np.int64]]:
        low = int(self.trie.low[prefix]) + int(self.trie.num_ends[prefix])
        starts = self.trie.low[self.trie.children(prefix)] - np.int64(low)
        return low, int(self.trie.high[prefix]), starts

    def likeliest(self, prefix: int, number: int) -> list[int]:
        """Rows of the most likely tokens that start with a trie node's prefix and are longer."""
        low = int(self.trie.low[prefix]) + int(self.trie.num_ends[prefix])
        weights = self.weights[low : int(self.trie.high[prefix])]
        if len(weights) > number:
            places = np.argpartition(weights, len(weights) - number)[-number:]
        else:
            places = np.arange(len(weights))
        likeliest: list[int] = (low + places[weights[places] > 0]).tolist()
        return likeliest

    def _log_sum(self, low: int, high: int) -> float:
        if self.is_wide:
            return log_sum(self._scores(low, high)) - self.log_total
        total = float(np.add.reduce(self.weights[low:high], dtype=np.float64))
        return math.log(total) + self.top - self.log_total if total else -math.inf

    def _scores(self, low: int, high: int) -> Array:
        scores = self.logits[self.trie.tokens[low:high]]
        return np.where(self.allowed[low:high], scores, -math.inf).astype(np.float64)


def node_laws(
    vocabulary: ByteVocabulary,
    standings: Sequence[Standing],
    logits: Tensor,
    mode: Mode = "masked",
) -> list[NodeLaw]:
    """Restrict next-token distributions to what may follow each node, and renormalise them.

    logits: (N, at least vocab_size) logits or log-probabilities, any float dtype, -inf = banned.
    Exponentials are taken in float32 (float64 for float64), sums in float64. All stop tokens count
    as one end. A row with NaN or +inf gives a law of NaN.
    """
    scores = (logits if logits.dtype == torch.float64 else logits.float())[
        :, : vocabulary.vocab_size
    ]
    allowed = np.stack([_allowed(vocabulary, standing, mode) for standing in standings])
    top = scores.amax(-1, keepdim=True)
    shift = top.masked_fill(top == -math.inf, 0.0)
    every = (scores - shift).exp()
    own = every.sum(-1).double().log() + shift[:, 0]
    rows = every.index_select(-1, vocabulary.rows_on(logits.device))
    weights = rows.cpu().numpy() * allowed
    is_tiny = allowed & (weights < NUM_TINY * torch.finfo(scores.dtype).tiny)
    columns = (
        scores.cpu().numpy(),
        allowed,
        weights,
        is_tiny,
        weights.sum(1, dtype=np.float64).tolist(),
        shift[:, 0].tolist(),
        own.tolist(),
    )
    return [
        _node_law(vocabulary, standing, *row)
        for standing, *row in zip(standings, *columns, strict=True)
    ]


def node_law(
    vocabulary: ByteVocabulary, standing: Standing, log_probs: ArrayLike, mode: Mode = "masked"
) -> NodeLaw:
    """The law of one node in float64, from `log_probs` (at least vocab_size,), as `node_laws`.

    Raises ValueError for NaN or a wrong length.
    """
    scores = np.asarray(log_probs, np.float64)
    if scores.ndim != 1 or len(scores) < vocabulary.vocab_size or np.isnan(scores).any():
        raise ValueError(f"log_probs must be ({vocabulary.vocab_size},) numbers without NaN")
    return node_laws(vocabulary, [standing], torch.from_numpy(scores)[None], mode)[0]


def _allowed(vocabulary: ByteVocabulary, standing: Standing, mode: Mode) -> NDArray[np.bool_]:
    viability = vocabulary.viability
    return viability.allowed(standing) if mode == "masked" else viability.well_formed(standing)


def _node_law(
    vocabulary: ByteVocabulary,
    standing: Standing,
    logits: NDArray[np.floating],
    allowed: NDArray[np.bool_],
    weights: NDArray[np.floating],
    is_tiny: NDArray[np.bool_],
    total: float,
    top: float,
    log_own: float,
) -> NodeLaw:
    trie = vocabulary.trie
    # A banned token is not small, it is absent.
    is_wide = bool((logits[trie.tokens[is_tiny]] > -math.inf).any())
    scores = logits[trie.tokens[allowed]] if is_wide else None
    log_rows = _log(total) + top if scores is None else log_sum(scores.astype(np.float64))
    log_end = -math.inf
    if vocabulary.viability.may_end(standing):
        log_end = log_sum(logits[vocabulary.stop_token_ids].astype(np.float64))
    log_total = float(np.logaddexp(log_rows, log_end))
    shift = 0.0 if log_total == -math.inf else log_total
    kept = log_total - log_own
    return NodeLaw(trie, logits, allowed, weights, is_wide, top, shift, log_end - shift, kept)


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf
