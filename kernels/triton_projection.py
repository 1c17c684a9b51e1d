"""Both projections by the walk kernel: every request has one row and a budget of its own."""

import torch
from torch import Tensor

from . import triton_layout as layout
from .law import Projection, RatioLaw
from .logit_pair import LogitPair, check_logits, read_shape
from .triton_launch import launch
from .triton_walk import DRAW, SOLVE
from .triton_workspace import Workspace, resident_splits, workspace

# B requests, V vocabulary.


def project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    *,
    is_max: bool,
) -> Projection:
    """`project_kl`, or `project_max` if `is_max`, without waiting for the device.

    Values are therefore not checked: a NaN budget counts as 0, and uniforms must be in [0, 1).
    Raises: ValueError for a wrong shape or dtype.
    """
    check_logits(risky_logits, safe_logits)
    num_rows, vocab_size = risky_logits.shape
    num_splits = resident_splits(num_rows, vocab_size, risky_logits.device)
    memory = workspace(num_rows, 1, vocab_size, risky_logits.device, num_splits)
    return project_into(memory, risky_logits, safe_logits, budget, uniform, is_max=is_max)


def project_into(
    memory: Workspace,
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    *,
    is_max: bool,
) -> Projection:
    """The same in one launch and nothing else: the Projection is a view of the workspace.

    memory: for B requests of 1 row and V tokens; the next launch overwrites what it holds.
    """
    _check(memory, risky_logits, budget, uniform)
    device = risky_logits.device
    launch(
        risky_logits[:, None],
        safe_logits[:, None],
        memory,
        {
            "budget_ptr": budget.to(device),
            "account_ptr": None,
            "uniform_ptr": None if uniform is None else uniform.to(device).contiguous(),
            "seeds_ptr": None,
            "given_ptr": None,
        },
        {
            "MODE": (SOLVE if uniform is None else DRAW).value,
            "IS_MAX": is_max,
            "HAS_ACCOUNT": False,
            "HAS_SEEDS": False,
        },
    )
    return _projection(memory, risky_logits, safe_logits, has_draw=uniform is not None)


def _projection(
    memory: Workspace, risky_logits: Tensor, safe_logits: Tensor, *, has_draw: bool
) -> Projection:
    facts, flags = memory.facts[:, 0], memory.flags[:, 0]
    is_valid = flags[:, layout.IS_VALID.value]
    is_safe_only = flags[:, layout.IS_SAFE_ONLY.value]
    pair = LogitPair(
        risky=risky_logits,
        safe=safe_logits,
        risky_peak=facts[:, layout.RISKY_PEAK.value, None],
        safe_peak=facts[:, layout.SAFE_PEAK.value, None],
        tilt_range=facts[:, layout.TILT_RANGE.value],
        is_valid=is_valid,
        plain_peaks=(None,) * len(is_valid),
        has_bans=True,  # they may; to know it would mean to wait for the device
        read_shape=read_shape(memory.vocab_size),
    )
    law = RatioLaw(
        pair=pair,
        safe_pieces=facts[:, layout.SAFE_MASS.value, None],
        slope=facts[:, layout.SLOPE.value],
        offset=facts[:, layout.OFFSET.value],
        ceiling=facts[:, layout.CEILING.value],
        is_safe_only=is_safe_only,
    )
    return Projection(
        weight=facts[:, layout.WEIGHT.value],
        spend=facts[:, layout.SPEND.value],
        is_safe_only=is_safe_only,
        is_valid=is_valid,
        token_ids=memory.token_ids[:, 0] if has_draw else None,
        accepted=flags[:, layout.ACCEPTED.value] if has_draw else None,
        law=law,
    )


def _check(memory: Workspace, risky_logits: Tensor, budget: Tensor, uniform: Tensor | None) -> None:
    shape = (memory.num_requests, memory.vocab_size)
    if risky_logits.shape != shape or memory.num_positions != 1:
        raise ValueError(
            f"the workspace is for {memory.num_positions} row(s) of {shape} logits, "
            f"got {tuple(risky_logits.shape)}"
        )
    if budget.shape != shape[:1] or not budget.dtype.is_floating_point:
        raise ValueError(
            f"budget must be ({shape[0]},) of a float dtype, "
            f"got {tuple(budget.shape)} {budget.dtype}"
        )
    if uniform is not None and (uniform.shape != (shape[0], 3) or uniform.dtype != torch.float64):
        raise ValueError(
            f"uniform must be ({shape[0]}, 3) float64, got {tuple(uniform.shape)} {uniform.dtype}"
        )
