"""The projection of order infinity: the risky law, scaled up and clipped by the safe law."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .backend import resolved_backend
from .law import Projection, safe_only_law
from .logit_pair import LogitPair, logit_pair
from .projection import floor_nats
from .row_group import BITS_PER_NAT, PIECE_SIZE
from .sampler import check_uniform, sample_law
from .spend import ceil_to_quantum, usable_budget
from .tilt import support_masses

# B requests, V vocabulary, A rows still open.

MISSING_MASS = 1e-9
"""Newton stops with 1 - total mass below it; scaling up by it costs that many nats."""

RESERVE_NATS = 2e-9
"""Kept back from the budget for that scaling and for rounding (1e-12 at V = 128,256)."""


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
class _SupportSums:
    """What one pass over the common support finds before anything is clipped; (A,) float64."""

    log2_risky: Tensor
    """log2 of the risky weight on it."""
    largest_tilt: Tensor
    """Bits."""
    smallest_tilt: Tensor
    """Bits."""


def _solve(pair: LogitPair, budget: Tensor) -> Projection:
    highest_ratio = torch.full_like(budget, torch.inf)
    law = replace(safe_only_law(pair), ceiling=highest_ratio)
    spend, weight = torch.zeros_like(budget), torch.zeros_like(budget)
    valid = pair.is_valid.nonzero()[:, 0]
    masses = support_masses(pair, valid)
    law.safe_pieces[valid] = masses.pieces
    floor = floor_nats(pair, valid, masses)
    limit = budget[valid] - RESERVE_NATS - 16.0 * pair.rounding(valid)
    is_open = (budget[valid] > 0.0) & (floor <= limit)
    rows, floor, ceiling = valid[is_open], floor[is_open], limit[is_open] * BITS_PER_NAT
    support = _support_sums(pair, rows)
    unscaled = law.log2_safe_mass[rows] - support.log2_risky
    ends = (unscaled, ceiling - support.smallest_tilt)
    offset, excess = _scaled_offset(pair, rows, law.log2_safe_mass[rows], ends, ceiling)
    law.is_safe_only[rows] = False
    law.slope[rows], law.offset[rows] = 1.0, offset - excess
    highest_ratio[rows] = ceiling - excess
    weight[rows] = (unscaled - offset).exp2().clamp_max(1.0)
    largest = torch.minimum(law.offset[rows] + support.largest_tilt, highest_ratio[rows])
    spend[rows] = _spend(pair, rows, largest, support, floor).minimum(budget[rows])
    return Projection(
        weight=weight,
        spend=spend,
        is_safe_only=law.is_safe_only,
        is_valid=pair.is_valid,
        token_ids=None,
        accepted=None,
        law=law,
    )


def _spend(
    pair: LogitPair, rows: Tensor, largest: Tensor, support: _SupportSums, floor: Tensor
) -> Tensor:
    eps = torch.finfo(torch.float64).eps
    margin = 8.0 * (pair.rounding(rows) + eps * support.largest_tilt.abs())
    spend = (largest / BITS_PER_NAT + margin).maximum(floor)
    # One tilt for every token: the two models agree on the common support, digit by digit.
    is_same = support.largest_tilt == support.smallest_tilt
    return ceil_to_quantum(torch.where(is_same, floor, spend))


def _scaled_offset(
    pair: LogitPair, rows: Tensor, log2_safe: Tensor, offsets: tuple[Tensor, Tensor], cap: Tensor
) -> tuple[Tensor, Tensor]:
    """The offset log2 c + constant at which the total mass is 1, and log2 of the mass reached.

    offsets: where c is 1, and where every token is clipped. Returns: (A,) float64 each.

    The total is concave in c, so the tangent at any c meets 1 at or below the root: it raises the
    lower end of the bracket from either side. Where that does not halve the bracket, its middle in
    log c is tried next: Newton alone took 1,511 passes with logits up to 1e4, this takes 23.
    """
    (low, high), trial = offsets, offsets[0]
    offset, total = low.clone(), torch.ones_like(low)
    searched = torch.arange(len(rows), device=rows.device)
    while len(searched):
        reached, root = _reached(pair, rows[searched], log2_safe[searched], trial, cap[searched])
        is_below = reached <= 1.0
        # Not above: the same linear piece twice, so its root is exact; or nothing is left to scale.
        is_done = ((1.0 - reached).abs() <= MISSING_MASS) | (is_below & ~(root > trial))
        best = searched[is_below | is_done]
        offset[best], total[best] = trial[is_below | is_done], reached[is_below | is_done]
        width, high = high - low, torch.where(is_below, high, trial)
        low = low.maximum(root.minimum(high))
        is_slow = (high - low > 0.5 * width) & (trial != low)
        following = torch.where(is_slow, low + 0.5 * (high - low), low)
        still = ~is_done & (following != trial)
        searched, low, high, trial = (x[still] for x in (searched, low, high, following))
    return offset, total.log2()


def _reached(
    pair: LogitPair, rows: Tensor, log2_safe: Tensor, offset: Tensor, cap: Tensor
) -> tuple[Tensor, Tensor]:
    """The total mass at an offset, and the offset at which its tangent meets 1; (A,) each."""
    clipped, log2_free = _cut_sums(pair, rows, offset, cap)
    clipped = clipped * (cap - log2_safe).exp2()
    reached = clipped + (offset - log2_safe + log2_free).exp2()
    return reached, (1.0 - clipped).clamp_min(0.0).log2() + log2_safe - log2_free


def _cut_sums(
    pair: LogitPair, rows: Tensor, offset: Tensor, ceiling: Tensor
) -> tuple[Tensor, Tensor]:
    """Safe weight where tilt + offset >= ceiling, and log2 of the risky weight elsewhere; (A,)."""
    shape, device = (len(rows), pair.num_pieces), rows.device
    clipped = torch.zeros(shape, dtype=torch.float64, device=device)
    free = torch.full_like(clipped, -torch.inf)
    cut = (ceiling - offset)[:, None]
    scratch = pair.scratch(len(rows), 2, torch.float64, PIECE_SIZE)
    for group in pair.row_groups(rows, scratch, in_bits=True):
        safe, tilt = group.slots
        for read in group.reads:
            here = (group.places, read.pieces.start)
            pair.read_shared(group, read, safe, tilt)
            is_clipped = tilt >= cut[group.places]
            risky = tilt.add_(safe)
            free[here] = _log2_sum(risky.masked_fill_(is_clipped, -torch.inf))
            clipped[here] = safe.exp2_().mul_(is_clipped).sum(-1)
    return clipped.sum(-1), _log2_total(free)


def _log2_sum(bits: Tensor) -> Tensor:
    """log2 of the sum of 2**bits along the last dimension; overwrites `bits` (R, C)."""
    peak = bits.amax(-1)
    weight = bits.sub_(peak.nan_to_num(neginf=0.0)[:, None]).exp2_().sum(-1)
    return peak + weight.clamp_min(1.0).log2()


def _log2_total(bits: Tensor) -> Tensor:
    return (bits / BITS_PER_NAT).logsumexp(-1) * BITS_PER_NAT


def _support_sums(pair: LogitPair, rows: Tensor) -> _SupportSums:
    shape, device = (len(rows), pair.num_pieces), rows.device
    log2_risky = torch.full(shape, -torch.inf, dtype=torch.float64, device=device)
    highest, lowest = log2_risky.clone(), -log2_risky
    scratch = pair.scratch(len(rows), 3, torch.float64, PIECE_SIZE)
    for group in pair.row_groups(rows, scratch, in_bits=True):
        safe, tilt, risky = group.slots
        for read in group.reads:
            here = (group.places, read.pieces.start)
            pair.read_shared(group, read, safe, tilt)
            torch.add(safe, tilt, out=risky)
            is_outside = safe == -torch.inf
            highest[here] = tilt.masked_fill_(is_outside, -torch.inf).amax(-1)
            lowest[here] = tilt.masked_fill_(is_outside, torch.inf).amin(-1)
            log2_risky[here] = _log2_sum(risky)
    return _SupportSums(_log2_total(log2_risky), highest.amax(-1), lowest.amin(-1))
