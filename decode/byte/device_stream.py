"""A stream of byte distributions that never waits for the device which computes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...kernels.interval_sums import interval_log_sums
from ..models.kv_cache import uploaded
from ..tokenizer.trie import ROOT, ByteTrie
from ..tokenizer.viability import Standing
from ..tokenizer.vocabulary import END_SYMBOL, NUM_SYMBOLS
from .byte_row import ByteRow
from .byte_stream import ByteStream
from .node_law import NodeLaw, allowed_rows
from .settings import ByteCounts, ByteEvaluation
from .token_tree import Head

# N nodes, V tokens of the vocabulary, T rows of the trie.


@dataclass(frozen=True, slots=True)
class DeviceLaw:
    """Log-probabilities that sum to one, in nats, as tensors of one device.

    scores: (T + 1,) by row of the trie and for the end, the logits or -inf where not allowed;
    log_total: () float64, log of their sum, 0.0 for a dead end. masked_mass: () float64, the share
    of the model's own mass that is not among them, 0.0 where that is none.
    """

    trie: ByteTrie
    scores: Tensor
    log_total: Tensor
    masked_mass: Tensor

    def of_token(self, token: int) -> Tensor:
        """Log-probability of one token: () float64."""
        return self.scores[int(self.trie.row_of[token])].double() - self.log_total


# R texts, H heads of the one with most, N heads of all, T rows of the trie.


class HeadTable:
    """Where the heads of R texts have the tokens that go on with each symbol, as the host knows it.

    rows: (R, H) int32, the place of each head among all. low, high: (R, H, 257) int32, intervals of
    the trie's rows; the end is row T. fresh: (R, H) float64, log masses of the heads where the
    text stands for its newest nodes alone. is_head: (R, H) bool, False for padding.
    """

    def __init__(self, heads: Sequence[Sequence[Head]], trie: ByteTrie) -> None:
        shape = (len(heads), max(1, *map(len, heads)))
        self.is_head = np.arange(shape[1]) < np.array([[len(own)] for own in heads])
        self.rows = np.zeros(shape, np.int32)
        self.rows[self.is_head] = np.arange(self.is_head.sum())
        self.fresh = np.full(shape, -np.inf)
        self.low = np.zeros((*shape, NUM_SYMBOLS), np.int32)
        self.high = np.zeros_like(self.low)
        for text, own in enumerate(heads):
            for place, (_, prefix) in enumerate(own):
                self._fill((text, place), prefix, trie)

    def _fill(self, at: tuple[int, int], prefix: int, trie: ByteTrie) -> None:
        children = trie.children(prefix)
        symbols = trie.byte[children]
        self.low[at][symbols] = trie.low[children]
        self.high[at][symbols] = trie.high[children]
        if prefix == ROOT:
            self.low[at][END_SYMBOL], self.high[at][END_SYMBOL] = np.array([0, 1]) + len(trie.texts)
            self.fresh[at] = 0.0


def log_probs_on_device(
    table: HeadTable, laws: Sequence[DeviceLaw], log_masses: Sequence[Tensor]
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """log q of the next symbol (R, 257) float64, -inf where nothing follows; the log mass of each
    text (R,), -inf for none; and the heads' masses.

    laws, log_masses: N of each, () float64, in the order of the table, on one device. A text to
    which they give no probability at all stands for its newest nodes alone: the masses returned
    are then those. Equal to `TreeMarginals` up to rounding; nothing waits for the device.
    """
    device = log_masses[0].device
    scores = torch.stack([law.scores for law in laws])
    totals = torch.stack([law.log_total for law in laws])
    rows, low, high = (_sent(array, device) for array in (table.rows, table.low, table.high))
    at = rows.long()
    is_head, fresh = _sent(table.is_head, device), _sent(table.fresh, device)
    known = torch.stack(list(log_masses))[at].masked_fill(~is_head, -torch.inf)
    both = torch.cat([known, fresh]) - totals[at].repeat(2, 1)
    sums = interval_log_sums(
        scores, rows.repeat(2, 1), both, low.repeat(2, 1, 1), high.repeat(2, 1, 1)
    )
    by_known, by_fresh = sums.chunk(2)
    is_dead = by_known.amax(-1, keepdim=True) == -torch.inf
    logs = torch.where(is_dead, by_fresh, by_known)
    total = logs.logsumexp(-1, keepdim=True)
    chosen = torch.where(is_dead, fresh, known)
    masses = [
        chosen[text, place] for text, own in enumerate(table.is_head) for place in range(own.sum())
    ]
    log_probs = (logs - total).masked_fill(total == -torch.inf, -torch.inf)
    return log_probs, by_known.logsumexp(-1), masses


def _sent(values: NDArray[np.generic], device: torch.device) -> Tensor:
    return uploaded(torch.from_numpy(values), device)


# R rows of one call.


def device_stream_refusal(evaluation: ByteEvaluation) -> str:
    """Why laws cannot stay on the device, "" if they can: the host must not choose by them."""
    if evaluation.tau:
        return f"tau={evaluation.tau} leaves nodes out by their mass"
    if evaluation.prefetch:
        return f"prefetch={evaluation.prefetch} takes the likeliest continuations"
    return ""


class DeviceByteStream(ByteStream):
    """A `ByteStream` whose laws, masses and marginals stay where the model is.

    The host grows the trees, which depend on the texts alone, and sends masks and intervals; the
    law of a next byte needs nothing back. So one transfer a byte is enough: that of the byte drawn.
    The log-probabilities of prompts are computed as in `ByteStream`.
    """

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        """As a `ByteStream`; ValueError for an evaluation by masses: `device_stream_refusal`."""
        super().__init__(*arguments, **settings)
        if refusal := device_stream_refusal(self.evaluation):
            raise ValueError(f"laws cannot stay on the device: {refusal}")
        # What a vocabulary needs for the laws is sent once.
        tokens = torch.from_numpy(self.vocabulary.trie.tokens.astype(np.int64))
        self._tokens = tokens.to(self._device)
        self._stops = torch.from_numpy(self.vocabulary.stop_token_ids).to(self._device)

    def counts(self, row: int) -> ByteCounts:
        """The work that a row has made so far; waits for the device."""
        own = super().counts(row)
        weighed, masked_mass = float(own.weighed), float(own.masked_mass)
        return replace(own, weighed=weighed, masked_mass=masked_mass)

    def _new_laws(self, standings: list[Standing], logits: Tensor) -> list[NodeLaw]:
        """As `node_laws`, with sums in float64 on the device."""
        vocabulary, mode = self.vocabulary, self.evaluation.mode
        is_double = logits.dtype == torch.float64
        own = (logits if is_double else logits.float())[:, : vocabulary.vocab_size]
        rows = np.stack([allowed_rows(vocabulary, standing, mode) for standing in standings])
        allowed = _sent(rows, self._device)
        may_end = np.array([[vocabulary.viability.may_end(standing)] for standing in standings])
        tokens = own.index_select(-1, self._tokens).masked_fill(~allowed, -torch.inf)
        end = own.index_select(-1, self._stops).double().logsumexp(-1, keepdim=True)
        end = end.masked_fill(~_sent(may_end, self._device), -torch.inf).to(own.dtype)
        scores = torch.cat([tokens, end], dim=1)
        log_total = scores.double().logsumexp(-1)
        is_dead = log_total == -torch.inf
        masked_mass = -(log_total - own.double().logsumexp(-1)).expm1()
        masked_mass = masked_mass.masked_fill(is_dead, 0.0).nan_to_num(0.0)
        log_total = log_total.masked_fill(is_dead, 0.0)
        columns = (scores.unbind(), log_total.unbind(), masked_mass.unbind())
        laws = [DeviceLaw(vocabulary.trie, *law) for law in zip(*columns, strict=True)]
        # Rows ask a law for of_token and masked_mass alone, and only ever add what these return.
        return cast(list[NodeLaw], laws)

    def _marginals(self, rows: list[ByteRow]) -> Tensor:
        heads = [[] if row.is_over else row.tree.heads for row in rows]
        if not any(heads):
            return self._filled(-torch.inf, len(rows), NUM_SYMBOLS)
        owners = [(row, head.node) for row, own in zip(rows, heads, strict=True) for head in own]
        log_probs, totals, masses = log_probs_on_device(
            HeadTable(heads, self.vocabulary.trie),
            [cast(DeviceLaw, row.marginals.laws[node]) for row, node in owners],
            [self._filled(row.marginals.log_mass[node]) for row, node in owners],
        )
        self._weigh_laws(rows, totals)
        for (row, node), mass in zip(owners, masses, strict=True):
            row.marginals.log_mass[node] = cast(float, mass)
        return log_probs

    def _weigh_laws(self, rows: list[ByteRow], totals: Tensor) -> None:
        """Count what masking took in new laws, as `ByteRow` does on the host."""
        new = [
            (row, total, *law)
            for row, total in zip(rows, totals, strict=True)
            for law in row.unweighed
        ]
        if not new:
            return
        owners, own_totals, log_masses, masked = zip(*new, strict=True)
        total = torch.stack(own_totals)
        shares = (torch.stack([*map(self._filled, log_masses)]) - total).clamp(max=0.0).exp()
        shares = shares.where(total > -torch.inf, 0.0).nan_to_num(0.0)
        for row, share, masked_mass in zip(owners, shares.unbind(), masked, strict=True):
            row.counts.weigh(cast(float, share), masked_mass)
        for row in rows:
            row.unweighed.clear()

    def _filled(self, value: float | Tensor, *shape: int) -> Tensor:
        """On the device; a mass may be there already."""
        if isinstance(value, Tensor):
            return value
        return torch.full(shape, value, dtype=torch.float64, device=self._device)
