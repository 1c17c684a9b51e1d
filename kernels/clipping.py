"""The projection of order infinity: the risky law, scaled up and clipped by the safe law."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .backend import resolved_backend
from .law import Projection, safe_only_law
from .law_sampler import sample_law
from .logit_pair import LogitPair, logit_pair
from .projection import floor_nats
from .row_group import BITS_PER_NAT
from .sampler import check_uniform
from .spend import EPSILON, MAX_DIVERGENCE_CAP, ceil_to_quantum, usable_budget
from .support import support_masses

# B requests, V vocabulary, A rows still open, R of them whose weights are held at once, C columns.

Floats = NDArray[np.float64]

LEAST_SUM = 2.0**-900
"""A sum of weights below it may have lost some to underflow and is taken again in logarithms."""

MISSING_MASS = 1e-9
"""Newton stops with the total mass within it of 1; scaling to 1 costs that many nats."""

RESERVE_NATS = 2e-9
"""Kept back from the budget for that scaling, and for rounding the spend up to its quantum."""

OFFSET_ERRORS = 16.0
"""Roundings of log-ratios kept back from the budget, each half a unit in the last place of the
offset and the tilts: five are made on the way to a token's ratio, and the spend counts eight."""


def project_max(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Projection:
    """The p* that minimises D_inf(p* || p_r) subject to D_inf(p* || p_s) <= budget, and a draw.

    On the common support S, p* = min(c p_r, e^budget p_s) with c >= 1 and p_r renormalised on S;
    the weight of the Projection is 1 / c. Arguments, spend and errors are those of `project_kl`,
    with D_inf(p* || p_s), the largest log-ratio, in place of the KL divergence.
    Source: paper, proposition on optimal Renyi clipping; c by Newton from c = 1, which climbs
    because the total mass is concave and piecewise linear in c, and bisection where it is slow.
    """
    if resolved_backend(backend, safe_logits.device) == "triton":
        from .triton_projection import project  # triton is not there on every platform

        return project(risky_logits, safe_logits, budget, uniform, is_max=True)
    pair = logit_pair(risky_logits, safe_logits)
    budget = usable_budget(budget, len(pair.is_valid), pair.safe.device)
    if uniform is not None:
        check_uniform(uniform, len(budget))
    projection = _solve(pair, budget)
    if uniform is None:
        return projection
    token_ids, accepted = sample_law(projection.law, pair.is_valid, uniform.to(pair.safe.device))
    return replace(projection, token_ids=token_ids, accepted=accepted)


@dataclass(frozen=True, slots=True)
class _Support:
    """Weights of some rows on the common support, kept while their scale is sought; 0 elsewhere."""

    places: slice
    """Places of these rows among the open ones."""
    tilt: Tensor
    """(R, C) float64, bits."""
    safe_weight: Tensor
    """(R, C) float64."""
    risky_bits: Tensor
    """(R, C) float64, -inf off the support."""
    risky_weight: Tensor
    """(R, C) float64, the heaviest of a row weighing 1."""
    mask: Tensor
    """(R, C) float64, to be written over."""
    risky_peak: Floats
    """(R,) bits of the heaviest risky weight."""
    log2_risky: Floats
    """(R,) log2 of the risky weight of the row."""
    largest_tilt: Floats
    """(R,) bits."""
    smallest_tilt: Floats
    """(R,) bits."""

    def cut_sums(self, cut: Floats) -> tuple[Floats, Floats]:
        """Safe weight of tilts from `cut` (R,) on, log2 of the risky weight below it; (R,) each."""
        border = torch.from_numpy(cut).to(self.tilt.device)[:, None]
        torch.ge(self.tilt, border, out=self.mask)
        clipped = _dot(self.safe_weight, self.mask)
        torch.lt(self.tilt, border, out=self.mask)
        free = _dot(self.risky_weight, self.mask)
        log2_free = np.log2(free) + self.risky_peak
        if (is_lost := free < LEAST_SUM).any():
            bits = self.risky_bits.masked_fill(self.mask == 0.0, -torch.inf)
            in_logarithms = _host(torch.logsumexp(bits / BITS_PER_NAT, -1) * BITS_PER_NAT)
            # Row by row: how a row is added up must not depend on the others.
            log2_free = np.where(is_lost, in_logarithms, log2_free)
        return clipped, log2_free


def _solve(pair: LogitPair, budget: Tensor) -> Projection:
    highest_ratio = torch.full_like(budget, torch.inf)
    law = replace(safe_only_law(pair), ceiling=highest_ratio)
    spend, weight = torch.zeros_like(budget), torch.zeros_like(budget)
    valid = pair.is_valid.nonzero()[:, 0]
    masses = support_masses(pair, valid)
    law.safe_pieces[valid] = masses.pieces
    floor = floor_nats(pair, valid, masses)
    limit = budget[valid].clamp(max=MAX_DIVERGENCE_CAP) - RESERVE_NATS - 16.0 * pair.rounding
    is_open = floor <= limit
    rows, floor, limit = valid[is_open], floor[is_open], limit[is_open]
    scale = _scales(pair, rows, law.log2_safe_mass[rows], limit * BITS_PER_NAT)
    # Where rounding leaves mass missing, or nothing above the floor, p* stays p_s.
    is_met = (scale.total - 1.0).abs() <= MISSING_MASS
    is_met &= floor * BITS_PER_NAT <= scale.ceiling
    rows, floor, scale = rows[is_met], floor[is_met], scale.take(is_met)
    excess = scale.total.log2()
    law.is_safe_only[rows] = False
    law.slope[rows], law.offset[rows] = 1.0, scale.offset - excess
    highest_ratio[rows] = scale.ceiling - excess
    weight[rows] = (scale.unscaled - scale.offset).exp2().clamp_max(1.0)
    spend[rows] = _spend(scale, excess, floor, pair.rounding)
    return Projection(
        weight=weight,
        spend=spend,
        is_safe_only=law.is_safe_only,
        is_valid=pair.is_valid,
        token_ids=None,
        accepted=None,
        law=law,
    )


@dataclass(frozen=True, slots=True)
class _Scales:
    """c of each open row, as offsets log2 c + constant; (A,) float64 each, bits but for `total`."""

    unscaled: Tensor
    """The offset at which c is 1."""
    offset: Tensor
    """The offset at which the total mass is 1, never beyond."""
    total: Tensor
    """The mass reached there."""
    ceiling: Tensor
    """The largest ratio allowed, log2 p* / p_s, less what log-ratios of this row may be off by."""
    largest_tilt: Tensor
    smallest_tilt: Tensor

    def take(self, rows: Tensor) -> _Scales:
        return _Scales(*(getattr(self, field.name)[rows] for field in fields(self)))


@np.errstate(divide="ignore", over="ignore", invalid="ignore")  # log2 of sums that are 0
def _scales(pair: LogitPair, rows: Tensor, log2_safe: Tensor, limit: Tensor) -> _Scales:
    """limit: (A,) float64, bits that the budget allows."""
    found = np.zeros((6, len(rows)))
    safe_mass, limits = _host(log2_safe), _host(limit)
    for support in _supports(pair, rows):
        here = support.places
        unscaled = safe_mass[here] - support.log2_risky
        largest, smallest = support.largest_tilt, support.smallest_tilt
        reach = np.abs(largest) + np.abs(smallest) + np.abs(unscaled) + limits[here]
        cap = limits[here] - OFFSET_ERRORS * EPSILON * reach
        ends = (unscaled, cap - smallest)
        offset, total = _scaled_offset(support, safe_mass[here], ends, cap)
        found[:, here] = (unscaled, offset, total, cap, largest, smallest)
    return _Scales(*torch.from_numpy(found).to(rows.device))


def _spend(scale: _Scales, excess: Tensor, floor: Tensor, rounding: float) -> Tensor:
    """D_inf rounded up, nats: at most the budget, for the ceiling keeps more back than is added."""
    largest = torch.minimum(scale.offset + scale.largest_tilt, scale.ceiling) - excess
    magnitude = scale.offset.abs() + scale.largest_tilt.abs()
    margin = 8.0 * rounding + 0.5 * OFFSET_ERRORS * EPSILON * magnitude / BITS_PER_NAT
    spend = (largest / BITS_PER_NAT + margin).maximum(floor)
    # One tilt for every token: the two models agree on the common support, digit by digit.
    is_same = scale.largest_tilt == scale.smallest_tilt
    return ceil_to_quantum(torch.where(is_same, floor, spend))


def _scaled_offset(
    support: _Support, log2_safe: Floats, offsets: tuple[Floats, Floats], cap: Floats
) -> tuple[Floats, Floats]:
    """The offset log2 c + constant at which the total mass is 1, and the mass reached.

    offsets: where c is 1, and where every token is clipped. Returns: (R,) float64 each; the mass is
    further than MISSING_MASS from 1 where rounding hides the root.

    The total is concave in c, so the tangent at any c meets 1 at or below the root: it raises the
    lower end of the bracket from either side. Where that neither halves the bracket nor quarters
    the mass still missing, the middle of the bracket in log c is tried next: Newton alone took
    1,511 passes with logits up to 1e4, this takes 19.
    """
    (low, high), trial = offsets, offsets[0]
    offset, total, missing = low.copy(), np.zeros_like(low), np.full_like(low, np.inf)
    is_open = np.ones(len(low), dtype=bool)
    while is_open.any():
        reached, root = _reached(support, log2_safe, trial, cap)
        is_below = reached <= 1.0
        # Not above: the same linear piece twice, so its root is exact; or nothing is left to scale.
        is_done = (np.abs(1.0 - reached) <= MISSING_MASS) | (is_below & ~(root > trial))
        is_best = is_open & (is_below | is_done)
        offset, total = np.where(is_best, trial, offset), np.where(is_best, reached, total)
        width, high = high - low, np.where(is_below, high, trial)
        low = np.fmax(low, np.minimum(root, high))  # no tangent where nothing is left to scale
        is_slow = (high - low > 0.5 * width) & (trial != low)
        is_slow &= ~is_below | (1.0 - reached > 0.25 * missing)
        missing = np.where(is_below, 1.0 - reached, missing)
        following = np.where(is_slow, low + 0.5 * (high - low), low)
        is_open &= ~is_done & (following != trial)
        trial = np.where(is_open, following, trial)
    return offset, total


def _reached(
    support: _Support, log2_safe: Floats, offset: Floats, cap: Floats
) -> tuple[Floats, Floats]:
    """The total mass at an offset, and the offset at which its tangent meets 1; (R,) each."""
    clipped, log2_free = support.cut_sums(cap - offset)
    clipped = clipped * np.exp2(cap - log2_safe)
    reached = clipped + np.exp2(offset - log2_safe + log2_free)
    return reached, np.log2(np.maximum(1.0 - clipped, 0.0)) + log2_safe - log2_free


def _supports(pair: LogitPair, rows: Tensor) -> Iterator[_Support]:
    """The given rows, (A,) int64, one at a time where each has more tokens than a piece."""
    scratch = pair.row_scratch(len(rows), 5)
    for places, group in pair.whole_row_groups(rows):
        safe, tilt, risky, weight, mask = scratch[: group.num_rows].unbind(1)
        pair.read_shared(group, group.reads[0], safe, tilt)
        torch.add(safe, tilt, out=risky)
        largest, smallest = _extremes(tilt, safe, mask)
        peak = risky.amax(-1, keepdim=True)
        torch.sub(risky, peak, out=weight).exp2_()
        yield _Support(
            places=places,
            tilt=tilt,
            safe_weight=safe.exp2_(),
            risky_bits=risky,
            risky_weight=weight,
            mask=mask,
            risky_peak=_host(peak[:, 0]),
            log2_risky=_host(peak[:, 0] + weight.sum(-1).log2()),
            largest_tilt=largest,
            smallest_tilt=smallest,
        )


def _extremes(tilt: Tensor, safe: Tensor, scratch: Tensor) -> tuple[Floats, Floats]:
    """The largest and the smallest tilt of the common support; (R,) each."""
    is_outside = safe == -torch.inf
    largest = scratch.copy_(tilt).masked_fill_(is_outside, -torch.inf).amax(-1)
    return _host(largest), _host(scratch.masked_fill_(is_outside, torch.inf).amin(-1))


def _dot(weight: Tensor, mask: Tensor) -> Floats:
    return _host(torch.bmm(weight[:, None], mask[:, :, None])[:, 0, 0])


def _host(values: Tensor) -> Floats:
    return values.cpu().numpy()
