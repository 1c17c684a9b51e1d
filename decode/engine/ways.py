"""The rule and the warpers by which each row of a batch draws; rows may share them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ..levels.level import Level
from ..rules.rule import OpenRule
from ..settings import SamplingConfig
from ..streams.kv_cache import uploaded
from ..streams.stream import Stream, WarpingStream
from ..warpers import Warpers
from .request import Request

# A rows that a step draws for, B rows of the batch, V symbols of the level.


class Way(NamedTuple):
    """The rule, the settings and the warpers by which one request draws."""

    rule: OpenRule
    sampling: SamplingConfig
    warpers: Warpers


class Ways:
    """The way of each row of a batch: that of the batch, unless its request names another."""

    def __init__(
        self, level: Level, rule: OpenRule, sampling: SamplingConfig, num_rows: int
    ) -> None:
        self._level = level
        self.shared = Way(rule, sampling, level.warpers(sampling))
        """The way of requests that name none."""
        self._of_rows = [self.shared] * num_rows

    def begin(self, row: int, request: Request, streams: Mapping[str, Stream]) -> None:
        """A request takes a row, whose streams warp as it asks, where they warp."""
        rule, sampling = request.rule or self.shared.rule, request.sampling or self.shared.sampling
        assert rule.streams == self.shared.rule.streams, "a request's rule reads other streams"
        alike = (way for way in (self.shared, *self._of_rows) if way.sampling == sampling)
        if (known := next(alike, None)) is None:
            known = Way(rule, sampling, self._level.warpers(sampling))
        if known.sampling != self._of_rows[row].sampling:
            for stream in streams.values():
                if isinstance(stream, WarpingStream):
                    stream.set_sampling(row, known.sampling)
        self._of_rows[row] = known._replace(rule=rule)

    def __getitem__(self, row: int) -> Way:
        return self._of_rows[row]

    def together(self, rows: Sequence[int]) -> list[list[int]]:
        """Groups of rows that one call of a rule draws for, in order: one where all are alike."""
        groups: dict[Hashable, list[int]] = {}
        for row in rows:
            way = self._of_rows[row]
            groups.setdefault((way.rule.next_token, way.sampling.is_greedy), []).append(row)
        return list(groups.values())

    def warp(self, rows: Sequence[int], seen: Tensor) -> Callable[[Tensor], Tensor]:
        """Raw logits (A, V) of these rows to warped ones; seen: (A, V) bool, see `Warpers`."""
        places: dict[SamplingConfig, list[int]] = {}
        for place, row in enumerate(rows):
            places.setdefault(self._of_rows[row].sampling, []).append(place)
        if len(places) == 1:
            return self._of_rows[rows[0]].warpers.after(seen)
        parts = []
        for of_kind in places.values():
            index = uploaded(torch.tensor(of_kind), seen.device)
            warpers = self._of_rows[rows[of_kind[0]]].warpers
            parts.append((index, warpers.after(seen.index_select(0, index))))
        return partial(_warped_in_parts, parts)


def _warped_in_parts(
    parts: Sequence[tuple[Tensor, Callable[[Tensor], Tensor]]], logits: Tensor
) -> Tensor:
    """parts: the places of some rows, int64, and their warpers; all places are in one of them."""
    warped = [warp(logits.index_select(0, index)) for index, warp in parts]
    whole = warped[0].new_empty(logits.shape)
    for (index, _), values in zip(parts, warped, strict=True):
        whole.index_copy_(0, index, values)
    return whole
