"""Rows of a request decided in order inside one launch: speculation, plain decoding, scoring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from . import triton_layout as layout
from .triton_launch import launch
from .triton_walk import DRAW, SCORE
from .triton_workspace import Workspace

# B requests, G rows of each, V vocabulary.

Divergence = Literal["kl", "max"]

SCHEDULES = {
    "adaptive": layout.ADAPTIVE.value,
    "global": layout.GLOBAL.value,
    "fixed": layout.FIXED.value,
}


@dataclass(frozen=True, slots=True)
class Walk:
    """What was decided in each row; views of a workspace, which the next launch overwrites.

    Rows that were not reached hold whatever an earlier launch left there.
    """

    memory: Workspace

    @property
    def was_reached(self) -> Tensor:
        """(B, G) bool: the row was decided; False behind a rejection or an invalid row."""
        return self._flag(layout.WAS_REACHED.value)

    @property
    def is_valid(self) -> Tensor:
        """(B, G) bool: False for a row with NaN, +inf or no token; the walk ends there."""
        return self._flag(layout.IS_VALID.value)

    @property
    def is_safe_only(self) -> Tensor:
        """(B, G) bool: p* = p_s on its full support."""
        return self._flag(layout.IS_SAFE_ONLY.value)

    @property
    def accepted(self) -> Tensor:
        """(B, G) bool: the token is the safe model's own draw; of no meaning in scoring."""
        return self._flag(layout.ACCEPTED.value)

    @property
    def token_ids(self) -> Tensor:
        """(B, G) int64, -1 where not valid."""
        return self.memory.token_ids

    @property
    def weight(self) -> Tensor:
        """(B, G) float64, as in `Projection`."""
        return self._fact(layout.WEIGHT.value)

    @property
    def spend(self) -> Tensor:
        """(B, G) float64 nats, a multiple of SPEND_QUANTUM."""
        return self._fact(layout.SPEND.value)

    @property
    def budget(self) -> Tensor:
        """(B, G) float64 nats that the row was allowed to spend."""
        return self._fact(layout.BUDGET.value)

    @property
    def log_probs(self) -> Tensor:
        """(B, G) float64, log p* of the token; NaN where not valid."""
        return self._fact(layout.LOG_PROB.value)

    @property
    def safe_log_probs(self) -> Tensor:
        """(B, G) float64, log p_s of the token; NaN where not valid."""
        return self._fact(layout.SAFE_LOG_PROB.value)

    def _fact(self, column: int) -> Tensor:
        return self.memory.facts[..., column]

    def _flag(self, column: int) -> Tensor:
        return self.memory.flags[..., column]


def new_accounts(
    per_step: Sequence[float],
    total: Sequence[float],
    debt: Sequence[float],
    schedule: Literal["adaptive", "global", "fixed"],
    device: torch.device,
) -> Tensor:
    """Budgets of B requests at their first step, nats; see `decode.budget.Budget`.

    Returns: (B, 6) float64: k, K, debt, schedule, steps taken, nats spent.
    Raises: ValueError for an unknown schedule.
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    rows = [
        [k, total_nats, debt_nats, float(SCHEDULES[schedule]), 0.0, 0.0]
        for k, total_nats, debt_nats in zip(per_step, total, debt, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64, device=device)


def walk(
    risky_logits: Tensor,
    safe_logits: Tensor,
    *,
    accounts: Tensor,
    uniform: Tensor,
    drafts: Tensor,
    memory: Workspace,
    divergence: Divergence = "kl",
) -> Walk:
    """Decide the rows of each request in order until one differs from its draft.

    risky_logits, safe_logits: (B, G, V), any float dtype and strides, warped. Row g follows the
    prefix of the request and its first g drafted tokens.
    accounts: (B, 6) float64 of `new_accounts`, contiguous; advanced in place by the rows decided.
    uniform: (B, G, 3) float64 in [0, 1), contiguous; or (B,) int64 seeds, and then row g draws by
    `uniforms(seed, steps taken + g)`.
    drafts: (B, G - 1) int64, contiguous: tokens the rows after the first assume; -1, which no row
    decides, ends a shorter draft. Plain decoding is G = 1, with drafts (B, 0).
    Returns: a Walk; one launch, nothing waits for the device, and a CUDA graph may capture it.
    Raises: ValueError for a wrong shape, dtype or layout.
    Source: Leviathan et al. 2023, "Fast inference from transformers via speculative decoding",
    with the uniforms fixed beforehand, so that every draft length gives the same tokens.
    """
    _check(memory, risky_logits, safe_logits, accounts)
    rows = (memory.num_requests, memory.num_positions)
    has_seeds = uniform.ndim == 1
    if has_seeds:
        _check_input("uniform", uniform, rows[:1], torch.int64)
    else:
        _check_input("uniform", uniform, (*rows, 3), torch.float64)
    _check_input("drafts", drafts, (rows[0], rows[1] - 1), torch.int64)
    inputs = {
        "budget_ptr": None,
        "account_ptr": accounts,
        "uniform_ptr": None if has_seeds else uniform,
        "seeds_ptr": uniform if has_seeds else None,
        "given_ptr": drafts,
    }
    constants = _constants(DRAW.value, divergence, has_seeds)
    launch(risky_logits, safe_logits, memory, inputs, constants)
    return Walk(memory)


def score(
    risky_logits: Tensor,
    safe_logits: Tensor,
    token_ids: Tensor,
    *,
    accounts: Tensor,
    memory: Workspace,
    divergence: Divergence = "kl",
) -> Walk:
    """log p* and log p_s of given tokens, with the budgets and spends that lead to them.

    token_ids: (B, G) int64 in [0, V), contiguous; row g follows the first g of them. The other
    arguments, the result and the errors are those of `walk`; no row is skipped, unless one before
    it is not valid.
    """
    _check(memory, risky_logits, safe_logits, accounts)
    rows = (memory.num_requests, memory.num_positions)
    _check_input("token_ids", token_ids, rows, torch.int64)
    inputs = {
        "budget_ptr": None,
        "account_ptr": accounts,
        "uniform_ptr": None,
        "seeds_ptr": None,
        "given_ptr": token_ids,
    }
    launch(risky_logits, safe_logits, memory, inputs, _constants(SCORE.value, divergence, False))
    return Walk(memory)


def _constants(mode: int, divergence: str, has_seeds: bool) -> dict[str, bool | int]:
    if divergence not in ("kl", "max"):
        raise ValueError(f"divergence must be 'kl' or 'max', got {divergence!r}")
    is_max = divergence == "max"
    return {"MODE": mode, "IS_MAX": is_max, "HAS_ACCOUNT": True, "HAS_SEEDS": has_seeds}


def _check(memory: Workspace, risky_logits: Tensor, safe_logits: Tensor, accounts: Tensor) -> None:
    shape = (memory.num_requests, memory.num_positions, memory.vocab_size)
    for name, logits in (("risky_logits", risky_logits), ("safe_logits", safe_logits)):
        if logits.shape != shape or not logits.dtype.is_floating_point:
            raise ValueError(
                f"{name} must be {shape} of a float dtype, as the workspace, "
                f"got {tuple(logits.shape)} {logits.dtype}"
            )
        if logits.device != memory.facts.device:
            raise ValueError(
                f"{name} must be on {memory.facts.device}, as the workspace, got {logits.device}"
            )
    num_fields = layout.NUM_ACCOUNT_FIELDS.value
    _check_input("accounts", accounts, (memory.num_requests, num_fields), torch.float64)


def _check_input(name: str, values: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if values.shape != shape or values.dtype != dtype or not values.is_contiguous():
        raise ValueError(
            f"{name} must be {shape} {dtype}, contiguous, got {tuple(values.shape)} {values.dtype}"
        )
