"""The KL projection: the law nearest to the risky model inside a KL ball around the safe one."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import small_vocab
from .backend import resolved_backend
from .law import Projection, RatioLaw
from .law_sampler import sample_law
from .logit_pair import LogitPair, logit_pair
from .sampler import check_uniform
from .search import KlTarget, largest_feasible
from .small_vocab import SMALL_VOCAB, FeasiblePoint
from .spend import ceil_to_quantum, usable_budget
from .support import SupportMasses, support_masses
from .tilt import TiltSums, statistics
from .tilt_points import LEAST_PARTITION, Array

__all__ = ["Projection", "project_kl"]

# B requests, V vocabulary, A rows still open, P points a row.

SHORTFALL_FRACTION = 0.9e-5
SHORTFALL_NATS = 0.9e-7
"""The search stops within max(fraction * budget, nats) of a budget that binds, or within half."""


def project_kl(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Projection:
    """The p* that minimises KL(p* || p_r) subject to KL(p* || p_s) <= budget, and a draw from it.

    risky_logits, safe_logits: (B, V), any float dtype and strides, warped; -inf is a banned token.
    budget: (B,) float, nats; rounded down to the spend quantum and capped at BUDGET_CAP.
    uniform: (B, 3) float64 in [0, 1) for the coupled sampler, or None.
    backend: "torch"; "triton", which needs CUDA tensors or Triton's interpreter and checks no
    values, so as not to wait for the device; or "auto", the fastest of them here.
    Returns: a Projection; the float64 KL at its weight is at most its spend, which is at most the
    budget. Where the budget binds and logits lie within +-100 the shortfall is at most
    max(1e-5 * budget, 1e-7) nats.
    Raises: ValueError for a wrong shape or dtype, a NaN budget or an unknown backend.
    Source: paper algorithm ProjectKL, solved by inverse Hermite interpolation of sqrt(KL).
    """
    if resolved_backend(backend, safe_logits.device) == "triton":
        from .triton_projection import project  # triton is not there on every platform

        return project(risky_logits, safe_logits, budget, uniform, is_max=False)
    pair = logit_pair(risky_logits, safe_logits)
    budget = usable_budget(budget, len(pair.is_valid), pair.safe.device)
    if uniform is not None:
        check_uniform(uniform, len(budget))
    projection = _solve(pair, budget)
    if uniform is None:
        return projection
    token_ids, accepted = sample_law(projection.law, pair.is_valid, uniform.to(pair.safe.device))
    return replace(projection, token_ids=token_ids, accepted=accepted)


def _solve(pair: LogitPair, budget: Tensor) -> Projection:
    limit, is_valid = budget.cpu().numpy(), pair.is_valid.cpu().numpy()
    pieces = np.zeros((len(limit), pair.num_pieces))
    idle, spenders = (np.flatnonzero(is_valid & is_so) for is_so in (limit <= 0.0, limit > 0.0))
    if len(idle):
        pieces[idle] = support_masses(pair, _rows(idle, budget)).pieces.cpu().numpy()
    rows = _rows(spenders, budget)
    is_small = pair.vocab_size <= SMALL_VOCAB and budget.device.type == "cpu"
    masses, sums = (support_masses(pair, rows), None) if is_small else statistics(pair, rows)
    pieces[spenders] = masses.pieces.cpu().numpy()
    costs = _costs(pair, rows, limit[spenders], masses)
    is_open = costs.floor <= costs.budget
    if not is_open.all():
        spenders = spenders[is_open]
        costs, rows = _Costs(*np.array(costs)[:, is_open]), _rows(spenders, budget)
        sums = sums and TiltSums(sums.beta[is_open], sums.sums[is_open])
    best = _largest_feasible(pair, rows, costs, sums)
    return _projection(pair, budget, spenders, pieces, costs, best)


def _projection(
    pair: LogitPair,
    budget: Tensor,
    spenders: NDArray[np.intp],
    pieces: Array,
    costs: _Costs,
    best: FeasiblePoint,
) -> Projection:
    """What was found for the rows that spend; the others are the safe model's.

    pieces: (B, num_pieces). costs, best: of the `spenders`.
    """
    found = np.zeros((3, len(pieces)))
    offset_bits = costs.log2_safe - best.log2_partition
    found[:, spenders] = best.beta, offset_bits, best.kl + best.margin + costs.floor
    slope, offset, spent = torch.from_numpy(found).to(budget.device).unbind()
    spends_nothing = np.ones(len(pieces), np.bool_)
    spends_nothing[spenders] = False
    is_safe_only = torch.from_numpy(spends_nothing).to(budget.device)
    return Projection(
        weight=slope,
        # The sum may round past a budget that it meets exactly; the margin covers that.
        spend=torch.minimum(ceil_to_quantum(spent), budget.clamp_min(0.0)),
        is_safe_only=is_safe_only,
        is_valid=pair.is_valid,
        token_ids=None,
        accepted=None,
        law=RatioLaw(
            pair=pair,
            safe_pieces=torch.from_numpy(pieces).to(budget.device),
            slope=slope,
            offset=offset,
            ceiling=None,
            is_safe_only=is_safe_only,
        ),
    )


def _rows(numbers: NDArray[np.intp], like: Tensor) -> Tensor:
    return torch.from_numpy(numbers).to(like.device)


class _Costs(NamedTuple):
    """What rows with a budget may spend, and what they must; (A,) each, on the host."""

    budget: Array
    """Nats."""
    floor: Array
    """Nats, `floor_nats`."""
    log2_shared: Array
    """log2 of the safe weight on the common support, and of all of it."""
    log2_safe: Array
    rounding: Array
    tilt_range: Array


def _costs(pair: LogitPair, rows: Tensor, budget: Array, masses: SupportMasses) -> _Costs:
    columns = (
        floor_nats(pair, rows, masses),
        masses.shared.log2(),
        masses.pieces.sum(-1).log2(),
        pair.rounding(rows),
        pair.tilt_range[rows],
    )
    return _Costs(budget, *torch.stack(columns).cpu().numpy())


def _largest_feasible(
    pair: LogitPair, rows: Tensor, costs: _Costs, sums: TiltSums | None
) -> FeasiblePoint:
    """The largest beta of the open rows: a search on the host."""
    allowance = costs.budget - costs.floor
    tolerance = np.maximum(SHORTFALL_FRACTION * costs.budget, SHORTFALL_NATS)
    tolerance = np.minimum(tolerance, 0.5 * allowance)
    if sums is None:
        columns = (costs.rounding, costs.log2_shared, allowance, tolerance)
        return small_vocab.largest_feasible(pair, rows, *columns)
    columns = (allowance, tolerance, costs.log2_shared, costs.rounding, costs.tilt_range)
    targets = [KlTarget(*x) for x in np.array(columns).T.tolist()]
    found = np.array([point[:4] for point in largest_feasible(pair, rows, sums, targets)])
    return FeasiblePoint(*found.reshape(-1, 4).T)


def floor_nats(pair: LogitPair, rows: Tensor, masses: SupportMasses) -> Tensor:
    """-log p_s(S) rounded up by its error bound: what leaving the safe model's support costs.

    Returns: (A,) float64 nats; exactly 0 where no safe weight is banned, and inf where S holds
    less than 2**-900 of the heaviest token's weight.
    """
    if not pair.has_bans:
        return torch.zeros_like(masses.shared)
    # A relative error of the quotient moves log1p by no more than that fraction of its value.
    floor = (masses.banned / masses.shared).log1p() * (1.0 + 8.0 * pair.rounding(rows))
    return torch.where(masses.shared.log2() > LEAST_PARTITION, floor, torch.inf)
