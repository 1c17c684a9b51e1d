"""Rows of many requests decided in order, each by its request's account: drafts and plain steps."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .projection import Projection, project_kl, project_max
from .spend import NUM_FIELDS, SPENT, STEP, allowance

# B requests, G rows of each, V vocabulary.

Divergence: TypeAlias = Literal["kl", "max"]


@dataclass(frozen=True, slots=True)
class Walk:
    """The decisions of a walk, row by row. Rows that were not reached hold anything."""

    was_reached: Tensor
    """(B, G) bool: the row was decided; False behind a rejection or an invalid row."""
    is_valid: Tensor
    """(B, G) bool: False for a row with NaN, +inf or no token; the walk ends there."""
    is_safe_only: Tensor
    """(B, G) bool: p* = p_s on its full support."""
    accepted: Tensor
    """(B, G) bool: the token is the safe model's own draw, or its likeliest in a greedy walk."""
    token_ids: Tensor
    """(B, G) int64, -1 where not valid."""
    weight: Tensor
    """(B, G) float64, as in `Projection`."""
    spend: Tensor
    """(B, G) float64 nats, a multiple of SPEND_QUANTUM."""
    budget: Tensor
    """(B, G) float64 nats that the row was allowed to spend."""
    log_probs: Tensor
    """(B, G) float64, log p* of the token; NaN where not valid."""
    safe_log_probs: Tensor
    """(B, G) float64, log p_s of the token; NaN where not valid."""


def walk(
    risky_logits: Tensor,
    safe_logits: Tensor,
    *,
    accounts: Tensor,
    seeds: Tensor | None,
    drafts: Tensor,
    divergence: Divergence = "kl",
    backend: str = "auto",
) -> Walk:
    """Decide the rows of each request in order until one differs from its draft.

    risky_logits, safe_logits: (B, G, V), any float dtype and strides, warped. Row g follows the
    prefix of the request and its first g drafted tokens.
    accounts: (B, 6) float64 of `spend.new_accounts`; advanced in place by the rows decided.
    seeds: (B,) int64, and then row g draws by `uniforms(seed, steps taken + g)`; None takes the
    likeliest token of each p*, for which no bound holds.
    drafts: (B, G - 1) int64: tokens the rows after the first assume; -1, which no row decides, ends
    a shorter draft. Plain decoding is G = 1, with drafts (B, 0).
    backend: as of `project_kl`; by Triton nothing waits for the device.
    Raises: ValueError for a wrong shape, dtype or device.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
    with the uniforms fixed beforehand, so that every draft length gives the same tokens.
    """
    num_requests, num_positions = _check(risky_logits, safe_logits, accounts, divergence)
    if seeds is not None:
        _check_input("seeds", seeds, (num_requests,), torch.int64)
    _check_input("drafts", drafts, (num_requests, num_positions - 1), torch.int64)
    project = project_max if divergence == "max" else project_kl
    spent, num_taken = accounts[:, SPENT].clone(), torch.zeros_like(accounts[:, STEP])
    is_going, rows = torch.ones_like(spent, dtype=torch.bool), []
    for position in range(num_positions):
        # 1. What the row may spend, after those before it.
        budget = allowance(accounts, position, spent)
        keyed = None if seeds is None else (seeds, accounts[:, STEP].long() + position)
        # 2. Its law and its token.
        safe = safe_logits[:, position]
        projection = project(risky_logits[:, position], safe, budget, keyed=keyed, backend=backend)
        row = _row(projection, is_going, budget, safe)
        rows.append(row)
        # 3. It is banked if it was reached, and the next one is reached behind a draft that stands.
        spent += torch.where(is_going, row.spend, 0.0)
        is_going = is_going & row.is_valid
        num_taken += is_going
        if position < drafts.shape[1]:
            is_going = is_going & (drafts[:, position] == row.token_ids)
    accounts[:, STEP] += num_taken
    accounts[:, SPENT] = spent
    columns = ([getattr(row, field.name) for row in rows] for field in fields(Walk))
    return Walk(*(torch.stack(column, dim=1) for column in columns))


def _row(projection: Projection, is_going: Tensor, budget: Tensor, safe: Tensor) -> Walk:
    """One position of a walk; (B,) each. safe: (B, V) logits."""
    is_valid, token_ids, accepted = projection.is_valid, projection.token_ids, projection.accepted
    if token_ids is None or accepted is None:  # a greedy walk
        token_ids = projection.log_probs().argmax(-1)
        accepted = token_ids == safe.argmax(-1)
    figures = projection.stored_log_probs
    if figures is None:
        figures = projection.token_log_probs(token_ids), projection.safe_token_log_probs(token_ids)
    return Walk(
        was_reached=is_going,
        is_valid=is_valid,
        is_safe_only=projection.is_safe_only,
        accepted=accepted,
        token_ids=token_ids.where(is_valid, -1),
        weight=projection.weight,
        spend=projection.spend,
        budget=budget,
        log_probs=figures[0],
        safe_log_probs=figures[1],
    )


def _check(
    risky_logits: Tensor, safe_logits: Tensor, accounts: Tensor, divergence: str
) -> tuple[int, int]:
    """Returns: B and G."""
    if divergence not in ("kl", "max"):
        raise ValueError(f"divergence must be 'kl' or 'max', got {divergence!r}")
    shape = tuple(safe_logits.shape)
    if len(shape) != 3 or risky_logits.shape != shape:
        raise ValueError(
            "risky_logits and safe_logits must both be (B, G, V), "
            f"got {tuple(risky_logits.shape)} and {shape}"
        )
    for name, logits in (("risky_logits", risky_logits), ("safe_logits", safe_logits)):
        if not logits.dtype.is_floating_point or logits.device != accounts.device:
            raise ValueError(
                f"{name} must be of a float dtype on {accounts.device}, as the accounts, "
                f"got {logits.dtype} on {logits.device}"
            )
    _check_input("accounts", accounts, (shape[0], NUM_FIELDS), torch.float64)
    return shape[0], shape[1]


def _check_input(name: str, values: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if values.shape != shape or values.dtype != dtype:
        raise ValueError(
            f"{name} must be {shape} {dtype}, got {tuple(values.shape)} {values.dtype}"
        )
