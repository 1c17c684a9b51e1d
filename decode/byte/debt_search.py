"""Prefix debts from few of the nodes beside the trunks: those that the largest ratios depend on."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..models.stream import PromptLogits
from ..rules.prefix_debt import log_likelihood_ratios
from .byte_row import NODES_PER_FORWARD
from .byte_stream import ByteStream
from .node_law import Array
from .path_sums import PathSums

CLOSE = 1e-11
"""Nats between the ends of an interval that is as good as a number."""

SLACK = 2.0
"""Most that a bounded debt may be of the least that the exact one can be."""

FIRST_BYTES = 24
"""Bytes that are looked into in each of the first rounds, of the largest upper ends: what these
turn out to be rules out most others."""

FIRST_ROUNDS = 3

LEAST_SHARE = 0.5
"""Of the largest group of a byte: smaller ones wait in the first rounds, as the byte may be decided
without them."""

LEAST_PART = 0.4
"""Of a ratio's interval: a model whose own interval is a smaller part of it waits."""


class DebtSearch:
    """What is known of one prompt's ratios, and which nodes tell more of those that count.

    A debt is the mean of the largest ratios. The laws along the trunks bound every ratio from both
    sides, and one that cannot exceed the least of those that count needs no better bounds. The
    groups of nodes that the others depend on are computed, the largest first, until the debt is
    exact; or, if it need not be, as soon as it is SLACK times the least possible one at most.
    """

    def __init__(self, sums: Mapping[str, PathSums], num_ratios: int, *, is_exact: bool) -> None:
        """sums: of the prompt, by "safe" and "risky"; they learn what is computed on the way."""
        self._sums, self._num_ratios, self._is_exact = sums, num_ratios, is_exact
        self._num_rounds = 0
        self._look()

    def _look(self) -> None:
        self._known = {name: sums.known() for name, sums in self._sums.items()}
        safe, risky = self._known["safe"], self._known["risky"]
        self._low = _ratios(risky.low, safe.high)
        self._high = _ratios(risky.high, safe.low)

    def log_probs(self) -> dict[str, Tensor]:
        """(bytes - 1,) float64 by model, of which the debt follows: exact where it matters, else
        the risky model's upper ends and the safe one's lower ends."""
        ends = {"safe": self._known["safe"].low, "risky": self._known["risky"].high}
        return {name: torch.from_numpy(own[1:-1]) for name, own in ends.items()}

    def wanted(self) -> dict[str, list[int]]:
        """Nodes to compute next, by model; none once the debt is decided."""
        if self._num_rounds:
            self._look()
        chosen = self._open_bytes()
        is_first = self._num_rounds < FIRST_ROUNDS
        self._num_rounds += 1
        if is_first:
            chosen = chosen[np.argsort(-self._high[chosen], kind="stable")][:FIRST_BYTES]
        nodes = {name: self._nodes(name, chosen, is_first) for name in self._sums}
        return {name: own for name, own in nodes.items() if own}

    def _open_bytes(self) -> NDArray[np.int64]:
        """Bytes, the first left out, that may count and are not known well enough."""
        low, high = (np.maximum(ends, 0.0) for ends in (self._low, self._high))
        number = min(self._num_ratios, len(low))
        if not number:
            return np.empty(0, np.int64)
        largest = np.sort(low)[-number:]
        if not self._is_exact and np.sort(high)[-number:].mean() <= SLACK * largest.mean():
            return np.empty(0, np.int64)
        return np.flatnonzero((high > largest[0]) & ~(self._high - self._low <= CLOSE))

    def _nodes(self, name: str, chosen: NDArray[np.int64], is_first: bool) -> list[int]:
        """Those of the groups that the chosen bytes depend on."""
        known = self._known[name]
        is_narrow = (known.high - known.low)[1:-1] < LEAST_PART * (self._high - self._low)
        is_wanted = np.zeros(len(known.low), np.bool_)
        is_wanted[chosen[~is_narrow[chosen]] + 1] = True
        is_part = is_wanted[known.place] & (known.log_share > -np.inf)
        if is_first:
            largest = np.full(len(is_wanted), -np.inf)
            np.maximum.at(largest, known.place, known.log_share)
            is_part &= known.log_share >= largest[known.place] + np.log(LEAST_SHARE)
        nodes: list[int] = np.unique(known.node[is_part])[:NODES_PER_FORWARD].tolist()
        return nodes


def _ratios(risky: Array, safe: Array) -> Array:
    """Of the bytes but the first."""
    ends = (torch.from_numpy(own[1:-1]) for own in (risky, safe))
    ratios: Array = log_likelihood_ratios(*ends).numpy()
    return ratios


@dataclass(frozen=True, slots=True)
class _Found:
    """A prompt that both models have read in part."""

    row: int
    search: DebtSearch


@np.errstate(invalid="ignore")  # a model's NaN is its request's to report
def settled_prompts(
    streams: Mapping[str, ByteStream], read: Mapping[str, PromptLogits], rows: list[int]
) -> Mapping[str, PromptLogits]:
    """What streams say of prompts just read into `rows`, scores narrowed as far as debts need it.

    Prompts that one of them did not read in part, or as another text, stay as they are.
    """
    found = {row: pair for row in rows if (pair := _both_sums(streams, row)) is not None}
    if not found:
        return read
    searches: dict[tuple[int, ...], _Found] = {}  # equal prompts are looked into once
    for row, sums in found.items():
        searches.setdefault(_key(sums), _Found(row, _search(streams, sums)))
    _look_into(streams, list(searches.values()))
    log_probs = {row: searches[_key(sums)].search.log_probs() for row, sums in found.items()}
    return {
        name: replace(
            own,
            token_log_probs=[
                log_probs[row][name] if row in log_probs else values
                for row, values in zip(rows, own.token_log_probs, strict=True)
            ],
            num_forwards=max(streams[name].counts(row).num_forwards for row in rows),
        )
        for name, own in read.items()
    }


def _look_into(streams: Mapping[str, ByteStream], found: list[_Found]) -> None:
    """Compute what the searches want until they want nothing."""
    while wanted := {own.row: nodes for own in found if (nodes := own.search.wanted())}:
        for name, stream in streams.items():
            own = {row: nodes[name] for row, nodes in wanted.items() if name in nodes}
            if own:
                stream.look_into(own)
    for stream in streams.values():
        stream.look_no_further([own.row for own in found])


def _both_sums(streams: Mapping[str, ByteStream], row: int) -> dict[str, PathSums] | None:
    sums = {name: own for name in streams if (own := streams[name].sums(row)) is not None}
    texts = {own.text for own in sums.values()}
    return sums if {*sums} == {"safe", "risky"} and len(texts) == 1 else None


def _search(streams: Mapping[str, ByteStream], sums: dict[str, PathSums]) -> DebtSearch:
    safe = streams["safe"]
    assert safe.num_ratios is not None
    is_exact = safe.evaluation.prompt_scores == "exact"
    return DebtSearch(sums, safe.num_ratios, is_exact=is_exact)


def _key(sums: dict[str, PathSums]) -> tuple[int, ...]:
    return tuple(map(id, sums.values()))
