"""The projection that bounds the largest log-ratio: the scale of p_r clipped by p_s."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..certificate import (
    MASS_MARGIN,
    MASS_RESERVE,
    MISSING_MASS,
    OFFSET_MARGIN,
    OFFSET_RESERVE,
    RESERVE_NATS,
)
from ..spend import BAN_BITS, BITS_PER_NAT, EPSILON, MAX_DIVERGENCE_CAP
from .rows import (
    OFF_SUPPORT,
    Floats,
    Numbers,
    Rows,
    Solution,
    columns,
    host,
    part,
    safe_solution,
    sums,
)

# A rows whose scale is sought, R rows read together, N pieces of a row, C columns of a piece.

LEAST_SUM = 2.0**-900
"""A sum of weights below it may have lost some to underflow and is taken again in logarithms."""

BEYOND_TILTS = 1e300
"""More bits than two log-weights within BAN_GAP of their peaks can differ by."""


class _Support(NamedTuple):
    """A rows on their common supports; (A, N, C) float64 or (A,)."""

    tilt: Tensor
    safe_weight: Tensor
    risky_bits: Tensor
    risky_weight: Tensor
    """The heaviest of a row weighing 1."""
    work: Tensor
    """To be written over."""
    risky_peak: Floats
    """Bits of the heaviest risky weight."""
    log2_safe: Floats
    """log2 of the safe weight of all tokens."""
    log2_risky: Floats
    """log2 of the risky weight on the support."""
    largest_tilt: Floats
    smallest_tilt: Floats

    @property
    def unscaled_offset(self) -> Floats:
        """The offset log2 p* / p_s - tilt of the risky distribution as it is, c = 1."""
        return self.log2_safe - self.log2_risky

    def cut_sums(self, cut: Floats) -> tuple[Floats, Floats]:
        """Safe weight of tilts from `cut` on, log2 of the risky weight below it; (A,) each."""
        border, mask = columns(cut, self.tilt), self.work
        clipped = sums(torch.ge(self.tilt, border, out=mask).mul_(self.safe_weight))
        free = sums(torch.lt(self.tilt, border, out=mask).mul_(self.risky_weight))
        log2_free = np.log2(free) + self.risky_peak
        if (is_lost := free < LEAST_SUM).any():
            is_free = (self.tilt < border) & (self.risky_bits > 0.5 * OFF_SUPPORT)
            nats = (self.risky_bits / BITS_PER_NAT).masked_fill_(~is_free, -torch.inf)
            in_logarithms = host(nats.flatten(1).logsumexp(-1)) * BITS_PER_NAT
            # Row by row: how a row is added up must not depend on the others.
            log2_free = np.where(is_lost, in_logarithms, log2_free)
        return clipped, log2_free


def solve(rows: Rows, budget: Floats) -> Solution:
    """p* of R rows. budget: (R,) nats, multiples of the quantum."""
    solution = safe_solution(len(budget))
    # 1. Rows whose budget pays for the common support; the others keep p_s.
    limit = np.minimum(budget, MAX_DIVERGENCE_CAP) - RESERVE_NATS - MASS_RESERVE * rows.rounding
    chosen = np.flatnonzero(rows.is_valid & (rows.floor <= limit))
    if len(chosen) == 0:
        return solution
    # 2. The largest ratio p* / p_s, and the scale c at which min(c p_r, ceiling p_s) sums to 1.
    support, floor = _support(rows, chosen), rows.floor[chosen]
    ceiling = _clip_ceiling(support, limit[chosen] * BITS_PER_NAT)
    offset, total = _search_scale(support, ceiling)
    # 3. p*, scaled down by what its mass exceeds 1 by. Where rounding leaves mass missing, or
    #    nothing above the floor, p* stays p_s.
    is_met = (np.abs(total - 1.0) <= MISSING_MASS) & (floor * BITS_PER_NAT <= ceiling)
    excess, met = np.log2(total), chosen[is_met]
    solution.is_safe_only[met], solution.slope[met] = False, 1.0
    solution.offset[met] = (offset - excess)[is_met]
    solution.ceiling[met] = (ceiling - excess)[is_met]
    solution.weight[met] = np.minimum(np.exp2(support.unscaled_offset - offset), 1.0)[is_met]
    # 4. The largest log-ratio, rounded up; the ceiling keeps more back than is added here.
    magnitude = np.abs(offset) + np.abs(support.largest_tilt)
    largest = np.minimum(offset + support.largest_tilt, ceiling) - excess
    spend = (largest + OFFSET_MARGIN * EPSILON * magnitude) / BITS_PER_NAT
    spend = np.maximum(spend + MASS_MARGIN * rows.rounding, floor)
    # One tilt for every token: the two models agree on the common support, digit by digit.
    is_same = support.largest_tilt == support.smallest_tilt
    solution.spend[met] = np.where(is_same, floor, spend)[is_met]
    # 5. Where tokens are charged for themselves: what the offset and the sums may put a log-ratio
    #    off by, and the most that a token costs, the ceiling with this margin. The ceiling keeps
    #    back twice as much, of sums and of a reach that the offset is within, and the quantum.
    margin = OFFSET_MARGIN * EPSILON * np.abs(offset) / BITS_PER_NAT + MASS_MARGIN * rows.rounding
    most = (ceiling - excess) / BITS_PER_NAT + margin
    solution.token_margin[met] = margin[is_met]
    solution.token_most[met] = np.where(is_same, floor, most)[is_met]
    return solution


def _support(rows: Rows, chosen: Numbers) -> _Support:
    shared, tilt = part(rows.shared, chosen), part(rows.tilt, chosen)
    risky_bits, risky_weight, safe_weight, work = rows.scratch[:, : len(chosen)].unbind(0)
    is_outside = torch.lt(shared, BAN_BITS, out=risky_weight).mul_(BEYOND_TILTS)
    largest = torch.sub(tilt, is_outside, out=work).amax((1, 2))
    smallest = torch.add(tilt, is_outside, out=work).amin((1, 2))
    torch.add(shared, tilt, out=risky_bits)
    peak = risky_bits.amax((1, 2), keepdim=True)
    torch.sub(risky_bits, peak, out=risky_weight).exp2_()
    risky_peak = host(peak).reshape(-1)
    return _Support(
        tilt=tilt,
        safe_weight=torch.exp2(shared, out=safe_weight),
        risky_bits=risky_bits,
        risky_weight=risky_weight,
        work=work,
        risky_peak=risky_peak,
        log2_safe=rows.log2_safe_mass[chosen],
        log2_risky=risky_peak + np.log2(sums(risky_weight)),
        largest_tilt=host(largest),
        smallest_tilt=host(smallest),
    )


def _clip_ceiling(support: _Support, limit: Floats) -> Floats:
    """The largest log2 p* / p_s allowed, (A,): the limit less what log-ratios may be off by."""
    reach = np.abs(support.largest_tilt) + np.abs(support.smallest_tilt)
    reach += np.abs(support.unscaled_offset) + np.abs(limit)
    return limit - OFFSET_RESERVE * EPSILON * reach


def _search_scale(support: _Support, ceiling: Floats) -> tuple[Floats, Floats]:
    """The offset log2 c + constant at which the total mass is 1, and the mass reached; (A,) each.

    The mass is further than MISSING_MASS from 1 where rounding hides the root. It is concave in c,
    so the tangent at any c meets 1 at or below the root: it raises the lower end of the bracket
    from either side. Where that neither halves the bracket nor quarters the mass still missing, the
    middle of the bracket in log c is tried next: Newton alone took 1,511 passes with logits up to
    1e4, this takes 19.
    """
    low, high = support.unscaled_offset, ceiling - support.smallest_tilt
    trial, offset, total = low, low, np.zeros_like(low)
    missing, is_open = np.full_like(low, np.inf), np.ones(len(low), dtype=np.bool_)
    while is_open.any():
        reached, root = _reached(support, trial, ceiling)
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


def _reached(support: _Support, offset: Floats, ceiling: Floats) -> tuple[Floats, Floats]:
    """The total mass at an offset, and the offset at which its tangent meets 1; (A,) each."""
    clipped, log2_free = support.cut_sums(ceiling - offset)
    clipped = clipped * np.exp2(ceiling - support.log2_safe)
    reached = clipped + np.exp2(offset - support.log2_safe + log2_free)
    root = np.log2(np.maximum(1.0 - clipped, 0.0)) + support.log2_safe - log2_free
    return reached, root
