"""The supports that a truncated step may have had: rounding decides about symbols at an edge."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor

from ..settings import SamplingConfig
from .step_laws import NUM_DEVIATIONS

# V symbols.

Warp = Callable[[SamplingConfig], Tensor]
"""One model's logits (V,) warped by other settings."""

LARGEST_MIN_P = 1.0 - 2.0**-24
"""min_p stays below 1."""


@dataclass(frozen=True, slots=True)
class SupportEdge:
    """One model's warped logits at a step, and the symbols whose place in them is uncertain."""

    kept: Tensor
    """(V,) -inf where truncated."""
    open: Tensor
    """(V,) the same without truncation."""
    uncertain: list[int]

    @classmethod
    def of(cls, warp: Warp, sampling: SamplingConfig, deviation: float) -> "SupportEdge":
        """deviation: of a logit; logits apart, as the ends of a gap, move by sqrt(2) of it."""
        kept = warp(sampling)
        reach = NUM_DEVIATIONS * math.sqrt(2.0) * deviation
        untruncated = warp(replace(sampling, top_k=0, top_p=1.0, min_p=0.0))
        is_uncertain = _is_kept(warp, sampling, reach) & ~_is_kept(warp, sampling, -reach)
        if sampling.top_k:
            is_uncertain |= _is_at_top_k(untruncated, sampling.top_k, reach)
        return cls(kept, untruncated, is_uncertain.nonzero()[:, 0].tolist())

    def flipped(self, symbol: int) -> "SupportEdge":
        """With a kept symbol dropped, or a dropped one kept."""
        kept = self.kept.clone()
        kept[symbol] = -math.inf if kept[symbol] > -math.inf else self.open[symbol]
        return replace(self, kept=kept)


Supports = Mapping[str, SupportEdge]
"""By "safe" and "risky"."""


def flipped_supports(supports: Supports) -> Iterator[Supports]:
    """Each uncertain symbol flipped in one model, or in both."""
    symbols = sorted(set(chain(*(edge.uncertain for edge in supports.values()))))
    for symbol in symbols:
        names = [name for name, edge in supports.items() if symbol in edge.uncertain]
        for chosen in [[name] for name in names] + ([names] if len(names) > 1 else []):
            yield {**supports, **{name: supports[name].flipped(symbol) for name in chosen}}


def _is_kept(warp: Warp, sampling: SamplingConfig, reach: float) -> Tensor:
    """(V,) bool under settings that are looser by `reach` nats, or tighter where it is negative.

    Top-p drops a tail of mass 1 - top_p, which moves like a logit; so does min_p of the largest.
    """
    min_p = min(sampling.min_p * math.exp(-reach), LARGEST_MIN_P)
    tail = min((1.0 - sampling.top_p) * math.exp(-reach), LARGEST_MIN_P)
    return warp(replace(sampling, top_p=1.0 - tail, min_p=min_p)) > -math.inf


def _is_at_top_k(logits: Tensor, top_k: int, reach: float) -> Tensor:
    """(V,) bool: within reach of the first symbol on the other side."""
    if top_k >= len(logits):
        return torch.zeros_like(logits, dtype=torch.bool)
    ordered = logits.sort(descending=True).values
    last, first_dropped = ordered[top_k - 1], ordered[top_k]
    gap = torch.where(logits >= last, logits - first_dropped, last - logits)
    return gap <= reach
