"""Other supports that rounding may have made of a step's truncated distributions."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, compress, product

import torch
from torch import Tensor

from ..settings import SamplingConfig

# V symbols.

Warp = Callable[[SamplingConfig], Tensor]
"""One model's logits (V,) warped by these settings."""

LARGEST_SHARE = 1.0 - 2.0**-24
"""min_p, and the tail that top_p drops, stay below 1."""


def other_supports(
    warps: Mapping[str, Warp], sampling: SamplingConfig, tolerances: Mapping[str, float]
) -> Iterator[dict[str, Tensor]]:
    """Warped logits of both models with one symbol kept that was dropped, or dropped that was kept,
    in one of them or in both, or with two changed for each other in one, wherever rounding may have
    decided that.

    warps, tolerances: by model; tolerances are of a warped logit, in nats.
    """
    kept = {name: warp(sampling) for name, warp in warps.items()}
    flipped = {
        name: torch.where(kept[name] > -math.inf, -math.inf, warp(sampling.untruncated))
        for name, warp in warps.items()
    }
    # Two logits move, as the ends of a gap.
    uncertain = {
        name: _uncertain(warp, sampling, math.sqrt(2.0) * tolerances[name])
        for name, warp in warps.items()
    }
    for symbol in sorted(set(chain(*uncertain.values()))):
        choices = [(False, True) if symbol in uncertain[name] else (False,) for name in warps]
        for flips in product(*choices):
            if any(flips):
                rows = {name: logits.clone() for name, logits in kept.items()}
                for name in compress(warps, flips):
                    rows[name][symbol] = flipped[name][symbol]
                yield rows
    # Which of two symbols that are nearly alike is the last one kept.
    for name, tolerance in tolerances.items():
        if name in warps and (sampling.top_k or sampling.top_p < 1.0):
            for pair in _alike_across(kept[name], flipped[name], math.sqrt(2.0) * tolerance):
                rows = {other: logits.clone() for other, logits in kept.items()}
                rows[name][pair] = flipped[name][pair]
                yield rows


def _alike_across(kept: Tensor, dropped: Tensor, reach: float) -> Iterator[list[int]]:
    """Symbols that are kept, each with one that is dropped and whose logit is within reach of its.

    kept, dropped: (V,) warped logits, -inf for those of the other kind.
    """
    last = kept[kept > -math.inf].min()
    inside = ((kept > -math.inf) & (kept - dropped.max() <= reach)).nonzero()[:, 0].tolist()
    outside = (last - dropped <= reach).nonzero()[:, 0].tolist()
    for one, other in product(inside, outside):
        if float(kept[one] - dropped[other]) <= reach:
            yield [one, other]


def _uncertain(warp: Warp, sampling: SamplingConfig, reach: float) -> list[int]:
    is_uncertain = _is_kept(warp, sampling, reach) & ~_is_kept(warp, sampling, -reach)
    logits = warp(sampling.untruncated)
    if 0 < sampling.top_k < len(logits):
        # Of top_k: symbols within reach of the first one on the other side.
        last, first_dropped = logits.topk(sampling.top_k + 1).values[-2:]
        gap = torch.where(logits >= last, logits - first_dropped, last - logits)
        is_uncertain |= gap <= reach
    symbols: list[int] = is_uncertain.nonzero()[:, 0].tolist()
    return symbols


def _is_kept(warp: Warp, sampling: SamplingConfig, reach: float) -> Tensor:
    """(V,) bool under settings that are looser by `reach` nats, or tighter where it is negative.

    Top-p drops a tail of mass 1 - top_p, which moves like a logit; so does min_p of the largest.
    """
    min_p = min(sampling.min_p * math.exp(-reach), LARGEST_SHARE)
    tail = min((1.0 - sampling.top_p) * math.exp(-reach), LARGEST_SHARE)
    return warp(replace(sampling, top_p=1.0 - tail, min_p=min_p)) > -math.inf
