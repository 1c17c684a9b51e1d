"""Both projections and their draws in torch, a group of rows at a time."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..law import Law, Projection
from ..spend import ceil_to_quantum
from . import clipping, kl
from .draw import draw
from .rows import Floats, Rows, Solution, host, row_groups

# B requests, V vocabulary, R rows of a group.


@torch.no_grad()
@np.errstate(divide="ignore", invalid="ignore", over="ignore")  # log2 of 0, in lanes not used
def project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    *,
    is_max: bool,
) -> Projection:
    """`projection.project_kl`, or `project_max` if `is_max`, of arguments that were checked.

    budget: (B,) float64, of `spend.usable_budget`. uniform: (B, 3) float64, or None.
    """
    solve = clipping.solve if is_max else kl.solve
    budgets, facts, draws = host(budget), [_NO_FACTS], [_NO_DRAWS]
    for places, rows in row_groups(risky_logits, safe_logits):
        solution = solve(rows, budgets[places])
        facts.append(_facts(rows, solution))
        if uniform is not None:
            token_ids, accepted = draw(rows, solution, uniform[places].to(safe_logits.device))
            draws.append(np.stack([token_ids, accepted]))
    columns = torch.from_numpy(np.concatenate(facts, 1)).to(safe_logits.device)
    drawn = torch.from_numpy(np.concatenate(draws, 1)).to(safe_logits.device)
    has_draw = uniform is not None
    return Projection(
        weight=columns[0],
        spend=ceil_to_quantum(columns[1]),
        is_safe_only=columns[5] > 0.0,
        is_valid=columns[6] > 0.0,
        token_ids=drawn[0] if has_draw else None,
        accepted=drawn[1] > 0 if has_draw else None,
        law=Law(
            risky_logits=risky_logits,
            safe_logits=safe_logits,
            slope=columns[2],
            offset=columns[3],
            ceiling=columns[4],
            is_safe_only=columns[5] > 0.0,
            risky_peak=columns[7],
            safe_peak=columns[8],
            log2_safe_mass=columns[9],
        ),
    )


_NO_FACTS, _NO_DRAWS = np.zeros((10, 0)), np.zeros((2, 0), dtype=np.int64)
"""Of an empty batch."""


def _facts(rows: Rows, solution: Solution) -> Floats:
    """(10, R)."""
    of_rows = (rows.is_valid, rows.risky_peak, rows.safe_peak, rows.log2_safe_mass)
    return np.stack([*solution, *of_rows])
