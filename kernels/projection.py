"""The KL projection: the law nearest to the risky model inside a KL ball around the safe one."""

from dataclasses import replace

import torch
from torch import Tensor

from . import small_vocab
from .backend import resolved_backend
from .law import Projection, safe_only_law
from .logit_pair import LogitPair, logit_pair
from .sampler import check_uniform, sample_law
from .search import KlTarget, largest_feasible
from .small_vocab import SMALL_VOCAB, FeasiblePoint
from .spend import ceil_to_quantum, usable_budget
from .tilt import SupportMasses, estimated_sums, support_masses
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
    law = safe_only_law(pair)
    spend = torch.zeros_like(budget)
    valid = pair.is_valid.nonzero()[:, 0]
    masses = support_masses(pair, valid)
    law.safe_pieces[valid] = masses.pieces
    floor = floor_nats(pair, valid, masses)
    is_open = (budget[valid] > 0.0) & (floor <= budget[valid])
    rows, floor = valid[is_open], floor[is_open]
    allowance = budget[rows] - floor
    tolerance = (SHORTFALL_FRACTION * budget[rows]).clamp_min(SHORTFALL_NATS)
    tolerance = torch.minimum(tolerance, 0.5 * allowance)
    best = _largest_feasible(pair, rows, masses.shared[is_open].log2(), allowance, tolerance)
    law.is_safe_only[rows] = False
    law.slope[rows] = best.beta
    law.offset[rows] = law.log2_safe_mass[rows] - best.log2_partition
    # The sum may round past a budget that it meets exactly; the margin covers that.
    spent = ceil_to_quantum(best.kl + best.margin + floor)
    spend[rows] = torch.minimum(spent, budget[rows])
    return Projection(
        weight=law.slope,
        spend=spend,
        is_safe_only=law.is_safe_only,
        is_valid=pair.is_valid,
        token_ids=None,
        accepted=None,
        law=law,
    )


def _largest_feasible(
    pair: LogitPair, rows: Tensor, log2_shared: Tensor, allowance: Tensor, tolerance: Tensor
) -> FeasiblePoint:
    if pair.vocab_size <= SMALL_VOCAB and pair.safe.device.type == "cpu":
        return small_vocab.largest_feasible(pair, rows, log2_shared, allowance, tolerance)
    sums = estimated_sums(pair, rows)
    is_untilted = sums.sums[:, 0, 2] == 0.0
    target = KlTarget(log2_shared, allowance, tolerance, is_untilted)
    best = largest_feasible(pair, rows, sums, target)
    return FeasiblePoint(*best.values[:, 0, :4].unbind(-1))


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
