"""The KL projection: the law nearest to the risky model inside a KL ball around the safe one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import torch
from torch import Tensor

from . import small_vocab
from .backend import resolved_backend
from .kl_target import FeasiblePoint, KlTarget
from .law import Projection, RatioLaw
from .law_sampler import sample_law
from .logit_pair import LogitPair, logit_pair
from .sampler import check_uniform
from .search import largest_feasible
from .small_vocab import SMALL_VOCAB
from .spend import EPSILON, ceil_to_quantum, usable_budget
from .support import SupportMasses, support_masses
from .tilt import TiltSums, statistics
from .tilt_points import LEAST_PARTITION

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
    limits, is_valid = budget.tolist(), pair.is_valid.tolist()
    valid = [row for row, is_so in enumerate(is_valid) if is_so]
    idle = [row for row in valid if limits[row] <= 0.0]
    rows = [row for row in valid if limits[row] > 0.0]
    pieces = budget.new_zeros(len(limits), pair.num_pieces)
    if idle:
        pieces[idle] = support_masses(pair, _row_numbers(idle, pair)).pieces
    numbers = _row_numbers(rows, pair)
    masses, sums = _measured(pair, numbers)
    pieces[rows] = masses.pieces
    spenders = _spenders(pair, numbers, [limits[row] for row in rows], masses)
    is_open = [spender.target.allowance >= 0.0 for spender in spenders]
    if not all(is_open):
        rows, spenders = list(compress(rows, is_open)), list(compress(spenders, is_open))
        numbers = _row_numbers(rows, pair)
        sums = sums and TiltSums(sums.beta[is_open], sums.sums[is_open])
    best = _largest_feasible(pair, numbers, sums, [spender.target for spender in spenders])
    found = dict(zip(rows, zip(spenders, best, strict=True), strict=True))
    return _projection(pair, budget, pieces, found)


def _measured(pair: LogitPair, rows: Tensor) -> tuple[SupportMasses, TiltSums | None]:
    """The safe masses, and what the search begins with; few symbols on the CPU need no pass."""
    if pair.vocab_size <= SMALL_VOCAB and rows.device.type == "cpu":
        return support_masses(pair, rows), None
    return statistics(pair, rows)


def _largest_feasible(
    pair: LogitPair, rows: Tensor, sums: TiltSums | None, targets: list[KlTarget]
) -> list[FeasiblePoint]:
    if sums is None:
        return small_vocab.largest_feasible(pair, rows, targets)
    return largest_feasible(pair, rows, sums, targets)


def _projection(
    pair: LogitPair,
    budget: Tensor,
    pieces: Tensor,
    found: Mapping[int, tuple[_Spender, FeasiblePoint]],
) -> Projection:
    """What was found for the rows that spend; the others are the safe model's.

    pieces: (B, num_pieces).
    """
    facts = [[0.0, 0.0, 0.0] for _ in range(len(pieces))]
    for row, (spender, best) in found.items():
        offset = spender.log2_safe - best.log2_partition
        facts[row] = [best.beta, offset, best.kl + best.margin + spender.floor]
    columns = torch.tensor(facts, dtype=torch.float64, device=budget.device)
    slope, offset, spent = columns.view(-1, 3).T.contiguous()
    is_safe_only = torch.tensor([row not in found for row in range(len(pieces))]).to(budget.device)
    return Projection(
        weight=slope,
        spend=ceil_to_quantum(spent),
        is_safe_only=is_safe_only,
        is_valid=pair.is_valid,
        token_ids=None,
        accepted=None,
        law=RatioLaw(
            pair=pair,
            safe_pieces=pieces,
            slope=slope,
            offset=offset,
            ceiling=None,
            is_safe_only=is_safe_only,
        ),
    )


def _row_numbers(rows: list[int], pair: LogitPair) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=pair.safe.device)


class _Spender(NamedTuple):
    """A row with a budget."""

    floor: float
    """Nats, `floor_nats`."""
    log2_safe: float
    """log2 of the safe weight of all tokens."""
    target: KlTarget


def _spenders(
    pair: LogitPair, rows: Tensor, budgets: list[float], masses: SupportMasses
) -> list[_Spender]:
    columns = (
        floor_nats(pair, rows, masses),
        masses.pieces.sum(-1).log2(),
        masses.shared.log2(),
        pair.tilt_range[rows],
    )
    values = zip(budgets, *(column.tolist() for column in columns), strict=True)
    return [_spender(*row, rounding=pair.rounding) for row in values]


def _spender(
    budget: float,
    floor: float,
    log2_safe: float,
    log2_shared: float,
    tilt_range: float,
    *,
    rounding: float,
) -> _Spender:
    # What is added to the floor again must not round past the budget: three roundings lie between.
    allowance = budget - floor - 4.0 * EPSILON * budget
    tolerance = max(SHORTFALL_FRACTION * budget, SHORTFALL_NATS)
    target = KlTarget(allowance, min(tolerance, 0.5 * allowance), log2_shared, rounding, tilt_range)
    return _Spender(floor, log2_safe, target)


def floor_nats(pair: LogitPair, rows: Tensor, masses: SupportMasses) -> Tensor:
    """-log p_s(S) rounded up by its error bound: what leaving the safe model's support costs.

    Returns: (A,) float64 nats; exactly 0 where no safe weight is banned, and inf where S holds
    less than 2**-900 of the heaviest token's weight.
    """
    if not pair.has_bans:
        return torch.zeros_like(masses.shared)
    # A relative error of the quotient moves log1p by no more than that fraction of its value.
    floor = (masses.banned / masses.shared).log1p() * (1.0 + 8.0 * pair.rounding)
    return torch.where(masses.shared.log2() > LEAST_PARTITION, floor, torch.inf)
