"""Rows of a request decided in order: speculation, plain decoding, scoring."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from .accounts import NUM_FIELDS, SPENT, STEP, allowance
from .backend import resolved_backend
from .projection import Projection, project_kl, project_max
from .uniforms import uniforms
from .warping import Warping

if TYPE_CHECKING:  # triton is not there on every platform
    from .gpu.launch import Workspace

# B requests, G rows of each, V vocabulary.

Divergence: TypeAlias = Literal["kl", "max"]

WalkMemory: TypeAlias = "Workspace | None"
"""What a walk writes on a device; None where torch decides it."""


@dataclass(frozen=True, slots=True)
class Walk:
    """What was decided in each row; by Triton views of the memory, which the next launch
    overwrites. Rows that were not reached hold anything."""

    was_reached: Tensor
    """(B, G) bool: the row was decided; False behind a rejection or an invalid row."""
    is_valid: Tensor
    """(B, G) bool: False for a row with NaN, +inf or no token; the walk ends there."""
    is_safe_only: Tensor
    """(B, G) bool: p* = p_s on its full support."""
    accepted: Tensor
    """(B, G) bool: the token is the safe model's own draw; of no meaning in scoring."""
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


def walk_memory(
    num_requests: int, num_positions: int, vocab_size: int, device: torch.device
) -> WalkMemory:
    """What walks of these sizes write on a device, made once; None where torch needs nothing.

    Raises: ValueError for sizes that no launch can have.
    """
    if resolved_backend("auto", device) == "torch":
        return None
    from .gpu.launch import resident_splits, workspace

    splits = resident_splits(num_requests, vocab_size, device)
    return workspace(num_requests, num_positions, vocab_size, device, splits)


def walk(
    risky_logits: Tensor,
    safe_logits: Tensor,
    *,
    accounts: Tensor,
    uniform: Tensor,
    drafts: Tensor,
    warping: Warping | None = None,
    memory: WalkMemory = None,
    divergence: Divergence = "kl",
    backend: str = "auto",
) -> Walk:
    """Decide the rows of each request in order until one differs from its draft.

    risky_logits, safe_logits: (B, G, V), any float dtype and strides, warped or raw. Row g follows
    the prefix of the request and its first g drafted tokens.
    accounts: (B, 6) float64 of `accounts.new_accounts`, contiguous; advanced in place by the rows
    decided.
    uniform: (B, G, 3) float64 in [0, 1), contiguous; or (B,) int64 seeds, and then row g draws by
    `uniforms(seed, steps taken + g)`.
    drafts: (B, G - 1) int64, contiguous: tokens the rows after the first assume; -1, which no row
    decides, ends a shorter draft. Plain decoding is G = 1, with drafts (B, 0).
    warping: what is done to raw logits, in either model, before anything else.
    memory: of `walk_memory` for these sizes; by Triton, it is made here if not given.
    backend: "torch", a projection of each row in turn; "triton", one launch, for which nothing
    waits and which a CUDA graph may capture; or "auto": "triton" on CUDA.
    Raises: ValueError for a wrong shape, dtype or layout.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
    with the uniforms fixed beforehand, so that every draft length gives the same tokens.
    """
    num_requests, num_positions = _check(risky_logits, safe_logits, accounts, divergence)
    if uniform.ndim == 1:
        _check_input("uniform", uniform, (num_requests,), torch.int64)
    else:
        _check_input("uniform", uniform, (num_requests, num_positions, 3), torch.float64)
    _check_input("drafts", drafts, (num_requests, num_positions - 1), torch.int64)
    if warping is not None:
        warping.check(safe_logits)
    if resolved_backend(backend, safe_logits.device) == "torch":
        if warping is not None:
            risky_logits, safe_logits = map(warping.warped, (risky_logits, safe_logits))
        return _torch_walk(risky_logits, safe_logits, accounts, uniform, drafts, divergence)
    from .gpu.launch import launch_walk

    inputs = (risky_logits, safe_logits, accounts, uniform, drafts)
    is_max = divergence == "max"
    return Walk(**launch_walk(*inputs, warping=warping, memory=memory, is_max=is_max))


def score(
    risky_logits: Tensor,
    safe_logits: Tensor,
    token_ids: Tensor,
    *,
    accounts: Tensor,
    memory: WalkMemory = None,
    divergence: Divergence = "kl",
    backend: str = "auto",
) -> Walk:
    """log p* and log p_s of given tokens, with the budgets and spends that lead to them.

    token_ids: (B, G) int64 in [0, V), contiguous; row g follows the first g of them. The other
    arguments, the result and the errors are those of `walk`; no row is skipped, unless one before
    it is not valid.
    """
    rows = _check(risky_logits, safe_logits, accounts, divergence)
    _check_input("token_ids", token_ids, rows, torch.int64)
    if resolved_backend(backend, safe_logits.device) == "torch":
        return _torch_walk(risky_logits, safe_logits, accounts, None, token_ids, divergence)
    from .gpu.launch import launch_walk

    inputs = (risky_logits, safe_logits, accounts, None, token_ids)
    is_max = divergence == "max"
    return Walk(**launch_walk(*inputs, warping=None, memory=memory, is_max=is_max))


def _torch_walk(
    risky_logits: Tensor,
    safe_logits: Tensor,
    accounts: Tensor,
    uniform: Tensor | None,
    given: Tensor,
    divergence: Divergence,
) -> Walk:
    """uniform: None to score the tokens given; otherwise they are drafts."""
    project = project_kl if divergence == "kl" else project_max
    spent, num_taken = accounts[:, SPENT].clone(), torch.zeros_like(accounts[:, STEP])
    is_going, rows = torch.ones_like(spent, dtype=torch.bool), []
    for position, (risky, safe) in enumerate(
        zip(risky_logits.unbind(1), safe_logits.unbind(1), strict=True)
    ):
        budget = allowance(accounts, position, spent)
        numbers = None if uniform is None else _row_uniforms(uniform, accounts, position)
        projection = project(risky, safe, budget, numbers, backend="torch")
        row = _row(projection, is_going, budget, given[:, position] if uniform is None else None)
        rows.append(row)
        spent += torch.where(is_going, row.spend, 0.0)
        is_going = is_going & row.is_valid
        num_taken += is_going
        if uniform is not None and position < given.shape[1]:
            is_going = is_going & (given[:, position] == row.token_ids)
    accounts[:, STEP] += num_taken
    accounts[:, SPENT] = spent
    columns = ([getattr(row, field.name) for row in rows] for field in fields(Walk))
    return Walk(*(torch.stack(column, dim=1) for column in columns))


def _row(projection: Projection, is_going: Tensor, budget: Tensor, given: Tensor | None) -> Walk:
    """One position of a walk; (B,) each."""
    token_ids = projection.token_ids if given is None else given
    assert token_ids is not None
    safe_log_probs, log_probs = projection.law.token_log_probs(token_ids.clamp(min=0))
    is_valid = projection.is_valid
    return Walk(
        was_reached=is_going,
        is_valid=is_valid,
        is_safe_only=projection.is_safe_only,
        accepted=is_valid if projection.accepted is None else projection.accepted,
        token_ids=token_ids.where(is_valid, -1),
        weight=projection.weight,
        spend=projection.spend,
        budget=budget,
        log_probs=log_probs.masked_fill(~is_valid, torch.nan),
        safe_log_probs=safe_log_probs.masked_fill(~is_valid, torch.nan),
    )


def _row_uniforms(uniform: Tensor, accounts: Tensor, position: int) -> Tensor:
    """(B, 3), of given numbers (B, G, 3) or of seeds (B,)."""
    if uniform.ndim == 1:
        return uniforms(uniform, accounts[:, STEP].long() + position)
    return uniform[:, position]


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
    if values.shape != shape or values.dtype != dtype or not values.is_contiguous():
        raise ValueError(
            f"{name} must be {shape} {dtype}, contiguous, got {tuple(values.shape)} {values.dtype}"
        )
