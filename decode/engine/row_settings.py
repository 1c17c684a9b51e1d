"""The rule and the warpers by which each row of a batch draws; rows may share them."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from ..levels.level import Level
from ..rules.rule import OpenRule
from ..settings import SamplingConfig
from ..streams.kv_cache import uploaded
from ..streams.stream import Stream, WarpingStream
from .request import Request

# A rows that a step draws for, V symbols of the level.


class RowSettings:
    """The rule, the sampling settings and the warpers of each row: those of the batch, unless its
    request names others."""

    def __init__(
        self, level: Level, rule: OpenRule, sampling: SamplingConfig, num_rows: int
    ) -> None:
        self._of_batch = rule, sampling
        self._warpers_of = lru_cache(num_rows + 1)(level.warpers)
        self.rules, self.sampling = [rule] * num_rows, [sampling] * num_rows
        self._warpers = [self._warpers_of(sampling)] * num_rows

    def begin(self, row: int, request: Request, streams: Mapping[str, Stream]) -> None:
        """A request takes a row, whose streams warp as it asks, where they warp."""
        rule, sampling = request.rule or self._of_batch[0], request.sampling or self._of_batch[1]
        assert rule.streams == self._of_batch[0].streams, "a request's rule reads other streams"
        if sampling != self.sampling[row]:
            for stream in streams.values():
                if isinstance(stream, WarpingStream):
                    stream.set_sampling(row, sampling)
        self.rules[row], self.sampling[row] = rule, sampling
        self._warpers[row] = self._warpers_of(sampling)

    def together(self, rows: Sequence[int]) -> list[list[int]]:
        """Groups of rows that one call of a rule draws for, in order: one where all are alike."""
        groups: dict[Hashable, list[int]] = {}
        for row in rows:
            kind = self.rules[row].next_token, self.sampling[row].is_greedy
            groups.setdefault(kind, []).append(row)
        return list(groups.values())

    def warp(self, rows: Sequence[int], seen: Tensor) -> Callable[[Tensor], Tensor]:
        """Raw logits (A, V) of these rows to warped ones; seen: (A, V) bool, see `Warpers`."""
        alike: dict[SamplingConfig, list[int]] = {}
        for i, row in enumerate(rows):
            alike.setdefault(self.sampling[row], []).append(i)
        if len(alike) == 1:
            return self._warpers[rows[0]].after(seen)
        parts = []
        for of_kind in alike.values():
            index = uploaded(torch.tensor(of_kind), seen.device)
            warpers = self._warpers[rows[of_kind[0]]]
            parts.append((index, warpers.after(seen.index_select(0, index))))

        def warped(logits: Tensor) -> Tensor:
            values = [warp(logits.index_select(0, index)) for index, warp in parts]
            whole = values[0].new_empty(logits.shape)
            for (index, _), part in zip(parts, values, strict=True):
                whole.index_copy_(0, index, part)
            return whole

        return warped
