"""The projections in torch: rows in groups through a solver and the draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from ..certificate import OFFSET_MARGIN
from ..projection import Charge, Projection, drawn_spend
from ..sampler import first_above
from ..spend import BAN_BITS, BITS_PER_NAT, EPSILON, ceil_to_quantum
from . import clip, kl
from .rows import Flags, Floats, Numbers, Rows, Solution, columns, host, part, row_groups, sums

# B requests, V vocabulary; A rows drawn for, R rows of a group, N pieces of a row, C columns.

ROW_FACTS = ("is_valid", "risky_peak", "safe_peak", "log2_safe_mass")
"""Attributes of `Rows` that go into a `Projection`."""

DRAWN_FACTS = ("token_id", "accepted", "log_prob", "safe_log_prob", "log2_ratio")
"""Rows of what `draw` returns."""


@torch.no_grad()
@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # log2 of 0, in lanes not used
def project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    *,
    charge: Charge,
) -> Projection:
    """`project.project_kl` for charge "mean", else `project_max`, of arguments that were checked.

    Rows are solved on the CPU wherever the logits are; the Projection lies where these do.
    budget: (B,) float64 on the CPU, of `spend.usable_budget`. uniform: (B, 3) float64, or None.
    """
    names = (*Solution._fields, *ROW_FACTS, *(() if uniform is None else DRAWN_FACTS))
    budgets, matrix = host(budget), [np.zeros((len(names), 0))]
    numbers = None if uniform is None else uniform.cpu()
    with _one_thread():
        for group, rows in row_groups(risky_logits.cpu(), safe_logits.cpu()):
            solution = (kl if charge == "mean" else clip).solve(rows, budgets[group])
            drawn = () if numbers is None else draw(rows, solution, numbers[group])
            matrix.append(np.stack([*solution, *(getattr(rows, n) for n in ROW_FACTS), *drawn]))
    columns = torch.from_numpy(np.concatenate(matrix, 1)).to(safe_logits.device)
    facts = dict(zip(names, columns, strict=True))
    has_draw, bounds = uniform is not None, (facts["token_most"], facts["token_margin"])
    if charge == "drawn" and has_draw:
        spend = drawn_spend(facts["log2_ratio"], *bounds)
    else:
        spend = ceil_to_quantum(facts["spend"])
    return Projection(
        **{name: facts[name] for name in ("weight", "slope", "offset", "ceiling", *ROW_FACTS[1:])},
        spend=spend,
        is_safe_only=facts["is_safe_only"] > 0.0,
        is_valid=facts["is_valid"] > 0.0,
        token_ids=facts["token_id"].long() if has_draw else None,
        accepted=facts["accepted"] > 0.0 if has_draw else None,
        stored_log_probs=(facts["log_prob"], facts["safe_log_prob"]) if has_draw else None,
        risky_logits=risky_logits,
        safe_logits=safe_logits,
        token_bounds=bounds if charge == "drawn" else None,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """Torch on one thread. Several divide an operation where its size says, and compute what is
    left of a vector by another routine: a row's last digit would depend on the other rows."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


def draw(rows: Rows, solution: Solution, uniform: Tensor) -> Floats:
    """(5, R), by DRAWN_FACTS: a token of each row, -1 where not valid, whether it is the safe
    model's, its log p* and log p_s in nats, NaN where not valid, and what `drawn_spend` takes.

    uniform: (R, 3) float64 in [0, 1).
    """
    first, second, third = uniform.unbind(1)
    # 1. The safe model's draw by u1, kept where u2 p_s < p*.
    drafts = _drawn(rows.safe, rows.safe_pieces, first, is_log=True)
    ratio, tilt = _log2_ratio(rows, solution, drafts)
    token_ids = np.where(rows.is_valid, host(drafts), -1)
    accepted = rows.is_valid & ((ratio >= 0.0) | (host(second) < np.exp2(ratio)))
    # 2. The others are drawn again by u3, from what p* has more than p_s: the mixture is p*.
    rejected = np.flatnonzero(rows.is_valid & ~accepted)
    if len(rejected) > 0:
        weights = _residual(rows, solution, rejected, np.isneginf(ratio[rejected]))
        has_weight = sums(weights) > 0.0
        # Where nothing weighs, p* is p_s to rounding, and the draft is kept.
        accepted[rejected[~has_weight]] = True
        replaced, indices = rejected[has_weight], np.flatnonzero(has_weight)
        weights, uniforms = part(weights, indices), third[torch.from_numpy(replaced)]
        token_ids[replaced] = host(_drawn(weights, weights.sum(-1), uniforms, is_log=False))
        drafts = torch.from_numpy(token_ids.clip(0))
        ratio, tilt = _log2_ratio(rows, solution, drafts)
    # 3. Its log-probabilities, and what it costs.
    safe = _at_tokens(rows.safe, drafts)
    bits = np.where(rows.is_valid, safe, np.nan) - rows.log2_safe_mass
    log_probs = (bits + ratio) / BITS_PER_NAT, bits / BITS_PER_NAT
    ratio = ratio + OFFSET_MARGIN * EPSILON * (np.abs(tilt) + np.abs(safe))
    return np.stack([token_ids, accepted, *log_probs, ratio])


def _drawn(weights: Tensor, pieces: Tensor, uniform: Tensor, *, is_log: bool) -> Tensor:
    """(A,) int64, tokens by the inverse CDF: the piece by its weight, then the token inside.

    weights: (A, N, C), in log2 if `is_log`. pieces: (A, N), their sums, some > 0. uniform: (A,).
    """
    running_sum = pieces.cumsum(-1)
    target = uniform * running_sum[:, -1]
    piece = first_above(running_sum, target)
    before = running_sum.gather(1, (piece - 1).clamp_min(0)[:, None])[:, 0]
    target = torch.where(piece > 0, target - before, target)
    inside = weights[torch.arange(piece.shape[0]), piece]
    inside = (inside.exp2_() if is_log else inside).cumsum(-1)
    return piece * weights.shape[2] + first_above(inside, target)


def _log2_ratio(rows: Rows, solution: Solution, token_ids: Tensor) -> tuple[Floats, Floats]:
    """(R,) log2 p* / p_s of a token of each row, -inf off the common support, and its tilt."""
    shared, tilt = (_at_tokens(x, token_ids) for x in (rows.shared, rows.tilt))
    ratio = np.minimum(solution.slope * tilt + solution.offset, solution.ceiling)
    ratio = np.where(solution.is_safe_only, 0.0, np.where(shared < BAN_BITS, -np.inf, ratio))
    return ratio, tilt


def _at_tokens(values: Tensor, token_ids: Tensor) -> Floats:
    """(R,) of (R, N, C)."""
    gathered: Floats = host(values.flatten(1).gather(1, token_ids[:, None]))[:, 0]
    return gathered


def _residual(rows: Rows, solution: Solution, rejected: Numbers, is_banned: Flags) -> Tensor:
    """(A, N, C), (p* - p_s)_+ up to a factor; where rounding leaves nothing of it and the draft is
    banned, p_s on the common support."""
    shared, tilt = part(rows.shared, rejected), part(rows.tilt, rejected)
    weights, safe_weights = rows.scratch[0, : len(rejected)], rows.scratch[1, : len(rejected)]
    slope, offset, ceiling = (
        columns(x[rejected], weights) for x in (solution.slope, solution.offset, solution.ceiling)
    )
    torch.mul(tilt, slope, out=weights).add_(offset).clamp_(max=ceiling)
    torch.exp2(shared, out=safe_weights)
    weights.add_(shared).exp2_().sub_(safe_weights).clamp_(min=0.0)
    is_stranded = host(weights.amax((1, 2)) == 0.0) & is_banned
    if is_stranded.any():
        stranded = torch.from_numpy(is_stranded)
        weights[stranded] = safe_weights[stranded]
    return weights
