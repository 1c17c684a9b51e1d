"""What follows one node: its next-token distribution over the rows of the trie, and the end."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..tokenizer.trie import ROOT, ByteTrie
from ..tokenizer.viability import Standing
from ..tokenizer.vocabulary import ByteVocabulary
from .settings import Mode

Array = NDArray[np.float64]


def log_sum(values: Array) -> float:
    """log of the sum of exp(values), -inf for none; values: (n,) float64, -inf allowed."""
    top = float(values.max(initial=-math.inf))
    if top == -math.inf:
        return top
    return top + math.log(float(np.exp(values - top).sum()))


def log_sum_of(values: Sequence[float]) -> float:
    """`log_sum` of a few numbers, without the cost of an array."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return sum(values) if values else top  # NaN may hide behind -inf
    return top + math.log(sum(math.exp(value - top) for value in values))


def segment_log_sums(values: Array, starts: NDArray[np.int64]) -> Array:
    """`log_sum` of consecutive segments.

    values: (n,) float64. starts: (k,) ascending, the first 0, all below n. Returns: (k,) float64.
    """
    top = np.maximum.reduceat(values, starts)
    shift = np.where(top == -math.inf, 0.0, top)
    lengths = np.diff(starts, append=len(values))
    sums = np.add.reduceat(np.exp(values - np.repeat(shift, lengths)), starts)
    with np.errstate(divide="ignore"):
        logs: Array = np.log(sums) + shift
    return logs


# N nodes, V tokens of the vocabulary, rows of the trie.

LEAST_WEIGHT = {np.dtype(name): 1e4 * float(np.finfo(name).tiny) for name in ("f4", "f8")}
"""Weights below so many times the smallest normal number are too small for sums: those are then
taken on the scale of their own maximum."""


@dataclass(frozen=True, slots=True)
class NodeLaw:
    """Log-probabilities, in nats, that together with the end sum to one (all -inf: a dead end).

    logits: (V,) by token. allowed: (V,) bool by row of the trie. weights: (V + 1,) by row, the
    probabilities divided by exp(log_scale), 0 where not allowed and behind the last row; `is_wide`
    says that some allowed ones are too small for sums. first_bytes: float64, their sums by first
    byte. log_total: log of the mass kept, on the scale of the logits. log_end: of ending the text,
    -inf where it may not. log_kept: share of the model's own mass that was kept, 0.0 if all of it,
    -inf for a dead end.
    """

    trie: ByteTrie
    logits: NDArray[np.floating]
    allowed: NDArray[np.bool_]
    weights: NDArray[np.floating]
    first_bytes: Array
    is_wide: bool
    log_scale: float
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

    def log_reach(self, prefix: int) -> float:
        """Log-probability of all that starts with a trie node's prefix and is longer.

        The end counts where the prefix is empty: 0.0 then, -inf for a dead end.
        """
        if prefix == ROOT:
            return -math.inf if self.log_kept == -math.inf else 0.0
        low, high = self.trie.longer(prefix)
        if self.is_wide:
            return log_sum(self._scores(low, high)) - self.log_total
        total = float(np.add.reduce(self.weights[low:high], dtype=np.float64))
        return math.log(total) + self.log_scale if total else -math.inf

    def log_children(self, prefix: int) -> Array:
        """The same by next byte: one entry for each child of the trie node, float64."""
        if self.is_wide:
            low, high = self.trie.longer(prefix)
            starts = self.trie.start[self.trie.children(prefix)]
            return segment_log_sums(self._scores(low, high), starts) - self.log_total
        with np.errstate(divide="ignore"):
            logs: Array = np.log(self.child_weights(prefix)) + self.log_scale
        return logs

    def child_weights(self, prefix: int) -> Array:
        """Weights by next byte, as `log_children`; too small ones are lost where it `is_wide`."""
        if prefix == ROOT:
            return self.first_bytes
        low, high = self.trie.longer(prefix)
        starts = self.trie.start[self.trie.children(prefix)]
        sums: Array = np.add.reduceat(self.weights[low:high], starts, dtype=np.float64)
        return sums

    def likely(self, prefix: int, least: float) -> list[int]:
        """Rows of the tokens that start with a trie node's prefix, are longer and have a
        log-probability of `least` or more.
        """
        low, high = self.trie.longer(prefix)
        if self.is_wide:
            is_likely = self._scores(low, high) >= least + self.log_total
        else:
            is_likely = self.weights[low:high] >= math.exp(least - self.log_scale)
        rows: list[int] = (np.flatnonzero(is_likely) + low).tolist()
        return rows

    def _scores(self, low: int, high: int) -> Array:
        scores = self.logits[self.trie.tokens[low:high]]
        return np.where(self.allowed[low:high], scores, -math.inf).astype(np.float64)


def node_laws(
    vocabulary: ByteVocabulary,
    standings: Sequence[Standing],
    logits: Tensor,
    mode: Mode = "masked",
) -> Iterator[NodeLaw]:
    """Restrict next-token distributions to what may follow each node, and renormalise them.

    logits: (N, at least vocab_size) logits or log-probabilities, any float dtype, -inf = banned.
    Exponentials are taken in float32 (float64 for float64), sums in float64. All stop tokens count
    as one end. A row with NaN or +inf gives a law of NaN.
    """
    # One copy from the device, then row by row: each finds the memory of the one before in the
    # cache, where tiles of many would leave it.
    scores = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    rows = scores.numpy(force=True)[:, : vocabulary.vocab_size]
    for standing, row in zip(standings, rows, strict=True):
        yield _node_law(vocabulary, standing, row, mode)


def allowed_rows(vocabulary: ByteVocabulary, standing: Standing, mode: Mode) -> NDArray[np.bool_]:
    """(V,) bool by row of the trie: the tokens that may follow."""
    viability = vocabulary.viability
    return viability.allowed(standing) if mode == "masked" else viability.well_formed(standing)


def allowed_in_order(
    vocabulary: ByteVocabulary, standings: Sequence[Standing], mode: Mode
) -> NDArray[np.bool_]:
    """(N, vocab_size) bool, columns as in `ordered_tokens`: what may follow, stop tokens too."""
    num_rows = len(vocabulary.trie.tokens)
    ends = slice(num_rows, num_rows + len(vocabulary.stop_token_ids))
    allowed = np.zeros((len(standings), vocabulary.vocab_size), np.bool_)
    for standing, row in zip(standings, allowed, strict=True):
        row[:num_rows] = allowed_rows(vocabulary, standing, mode)
        row[ends] = vocabulary.viability.may_end(standing)
    return allowed


def _node_law(
    vocabulary: ByteVocabulary, standing: Standing, logits: NDArray[np.floating], mode: Mode
) -> NodeLaw:
    trie, allowed = vocabulary.trie, allowed_rows(vocabulary, standing, mode)
    largest = np.maximum.reduce(logits)
    top = largest if largest != -math.inf else logits.dtype.type(0.0)
    every = logits - top
    np.exp(every, out=every)
    weights = every.take(trie.padded_tokens)
    by_row = weights[:-1]
    is_wide = _is_wide(trie, logits, by_row, allowed)
    by_row *= allowed
    weights[-1] = 0.0
    first_bytes = np.add.reduceat(weights, trie.first_byte_starts, dtype=np.float64)
    log_rows = _log(float(np.add.reduce(first_bytes))) + float(top)
    if is_wide:
        log_rows = log_sum(logits[trie.tokens[allowed]].astype(np.float64))
    log_end, log_all = -math.inf, log_rows
    if vocabulary.viability.may_end(standing):
        log_end = log_sum_of(logits[vocabulary.stop_token_ids].tolist())
        log_all = log_sum_of((log_rows, log_end))
    is_dead = log_all == -math.inf
    log_total = 0.0 if is_dead else log_all
    log_own = _log(float(np.add.reduce(every))) + float(top)
    return NodeLaw(
        trie=trie,
        logits=logits,
        allowed=allowed,
        weights=weights,
        first_bytes=first_bytes,
        is_wide=is_wide,
        # Nothing has weight in a dead end, and a scale of its own might be infinite.
        log_scale=float(top) - log_total if log_rows != -math.inf else 0.0,
        log_total=log_total,
        log_end=log_end - log_total,
        log_kept=-math.inf if is_dead else log_all - log_own,
    )


def _is_wide(
    trie: ByteTrie,
    logits: NDArray[np.floating],
    weights: NDArray[np.floating],
    allowed: NDArray[np.bool_],
) -> bool:
    limit = LEAST_WEIGHT[weights.dtype]
    if np.minimum.reduce(weights) >= limit:
        return False
    is_tiny = allowed & (weights < limit)
    # A banned token is not small, it is absent.
    return bool((logits[trie.tokens[is_tiny]] > -math.inf).any())


def _log(value: float) -> float:
    return math.log(value) if value else -math.inf
