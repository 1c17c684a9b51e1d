"""The projections onto a ball around the safe model, by Triton where it is right.

For the charge "mean" p* minimizes KL(p* || p_r) subject to KL(p* || p_s) <= budget: p_s tilted
towards p_r, by Newton's method in sqrt(KL). For "worst" and "drawn" it minimizes D_inf(p* || p_r)
subject to D_inf(p* || p_s) <= budget: on the common support S, p* = min(c p_r, e^budget p_s) with
c >= 1 and p_r renormalized on S, and the weight is 1 / c; by Newton from c = 1, which climbs
because the total mass is concave and piecewise linear in c, and bisection where it is slow.
The CPU's solver computes p*, and Triton on a device that has drawn a few rows as that solver does.
Source: paper, algorithm ProjectKL, and the proposition on optimal Renyi clipping.
"""

from __future__ import annotations

import logging
import subprocess
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .cpu import solve
from .projection import Charge, Projection
from .sampler import uniforms
from .spend import usable_budget

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# B requests, V vocabulary.

logger = logging.getLogger(__name__)

BACKENDS = ("auto", "torch", "triton")

FAILURES: tuple[type[Exception], ...] = (
    ImportError,  # Triton is not installed, or lacks what this version uses
    OSError,  # no compiler, no room for what it compiles
    subprocess.SubprocessError,  # a compiler that ends with an error
    RuntimeError,  # of the driver, at a launch; a comparison that failed
    *(AssertionError, AttributeError, LookupError, TypeError, ValueError),  # in Triton's compiler
)
"""Errors that Triton is known to raise on devices that it does not know well; those that Triton
defines are added to them."""

MOST_REASON = 300
"""Characters of an error's end, where compilers say what is wrong."""

BUDGETS = (0.0, 0.01, 0.1, 0.3, 0.7, 1.5, 4.0, 100.0)
"""Nats, one a row: nothing may be spent in the first, and the last one binds nowhere."""

SHORTFALL_FRACTION, SHORTFALL_NATS = 1e-5, 1e-6
"""Two solvers may stop this far from each other below a budget that binds: each is within 0.9e-5 of
it or 0.9e-7 nats, see `certificate`, and the rest is left for rounding."""

_failed: set[torch.device] = set()
"""Devices whose tensors the CPU's solver projects."""
_agreed: set[torch.device] = set()
"""Devices on which other processes draw the same tokens, see `agree`."""


def project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None = None,
    *,
    charge: Charge,
    keyed: tuple[Tensor, Tensor] | None = None,
    backend: str = "auto",
) -> Projection:
    """The p* nearest to p_r within a budget around p_s, and a draw from it.

    risky_logits, safe_logits: (B, V), any float dtype and strides, warped; -inf is a banned token.
    budget: (B,) float, nats; rounded down to the spend quantum and capped at BUDGET_CAP.
    uniform: (B, 3) float64 in [0, 1) for the coupled sampler, or None.
    charge: "mean" spends at least KL(p* || p_s), "worst" the largest log-ratio log p*(y)/p_s(y),
    rounded up, "drawn" that of the token drawn, which may be negative, and without a draw the
    largest. Each spends 0 where p* is p_s, and at most the budget whatever is drawn.
    keyed: in place of `uniform`, keys and positions, (B,) int64 both, of `sampler.uniforms`: the
    numbers are then made where the logits are.
    backend: "torch", on the CPU wherever the tensors are; "triton", which needs CUDA tensors or
    Triton's interpreter and checks no values, so as not to wait for the device; or "auto": "triton"
    on CUDA where it compiles, launches and agrees with "torch" on a few rows.
    Returns: a Projection. Where the budget of "mean" binds and logits lie within +-100 the
    shortfall is at most max(1e-5 * budget, 1e-7) nats. A row's digits depend on nothing but the
    row.
    Raises: ValueError for a wrong shape or dtype, a NaN budget or an unknown backend.
    """
    _check(risky_logits, safe_logits, budget, uniform, backend)
    rows = risky_logits, safe_logits, budget, uniform, keyed
    if backend == "triton":
        return _launched(*rows, charge=charge)
    if backend == "auto" and takes_triton(safe_logits.device):
        drawn = _tried(*rows, charge=charge)
        if drawn is not None:
            return drawn
    numbers = uniform if keyed is None else uniforms(*(x.cpu() for x in keyed))
    if uniform is not None and not bool(((uniform >= 0.0) & (uniform < 1.0)).all()):
        raise ValueError(f"uniform must be in [0, 1), got {uniform.tolist()}")
    return solve.project(risky_logits, safe_logits, usable_budget(budget), numbers, charge=charge)


project_kl, project_max = partial(project, charge="mean"), partial(project, charge="worst")


def _check(
    risky_logits: Tensor, safe_logits: Tensor, budget: Tensor, uniform: Tensor | None, backend: str
) -> None:
    """Raise ValueError for a wrong shape, dtype or device, or backend; values may be any."""
    both = risky_logits, safe_logits
    if risky_logits.ndim != 2 or risky_logits.shape != safe_logits.shape:
        shapes = " and ".join(str(tuple(logits.shape)) for logits in both)
        raise ValueError(f"risky_logits and safe_logits must both be (B, V), got {shapes}")
    rows, vocab_size = safe_logits.shape
    if vocab_size == 0:
        raise ValueError("the vocabulary must hold at least 1 token, got 0")
    for name, values in (("logits", risky_logits), ("logits", safe_logits), ("budget", budget)):
        if not values.dtype.is_floating_point:
            raise ValueError(f"{name} must have a float dtype, got {values.dtype}")
    if risky_logits.device != safe_logits.device:
        devices = " and ".join(str(logits.device) for logits in both)
        raise ValueError(f"both logits must be on one device, got {devices}")
    if budget.shape != (rows,):
        raise ValueError(f"budget must be ({rows},), got {tuple(budget.shape)}")
    if uniform is not None and (uniform.shape != (rows, 3) or uniform.dtype != torch.float64):
        shape = f"{tuple(uniform.shape)} {uniform.dtype}"
        raise ValueError(f"uniform must be ({rows}, 3) float64, got {shape}")
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")


def _launched(*rows: Any, charge: Charge) -> Projection:
    from .gpu import launch  # triton is not there on every platform

    return launch.project(*rows, charge=charge)


def _tried(*rows: Any, charge: Charge) -> Projection | None:
    """A launch on a device that has drawn a few rows as the CPU's solver does; None where Triton
    fails, which leaves the device to that solver. A launch that raised has changed nothing."""
    risky_logits, safe_logits, *_, keyed = rows
    device, vocab_size = safe_logits.device, safe_logits.shape[1]
    dtypes = risky_logits.dtype, safe_logits.dtype
    try:
        check_rows(device, dtypes, vocab_size, charge=charge, is_keyed=keyed is not None)
        return _launched(*rows, charge=charge)
    except torch.OutOfMemoryError:
        raise  # says nothing of Triton
    except _failures() as error:
        text = " ".join(str(error).split())[-MOST_REASON:]
        _give_up(device, f"Triton fails on {device}", f": {type(error).__name__}: {text}")
    return None


def _failures() -> tuple[type[Exception], ...]:
    try:
        from triton.errors import TritonError
    except ImportError:  # where there is no Triton there are none of its errors
        return FAILURES
    return (*FAILURES, TritonError)


def takes_triton(device: torch.device) -> bool:
    """Decide for the rest of the process whether Triton projects tensors of a device.

    Where an accelerator's tensors are left to the CPU's solver, one warning says why.
    """
    if device.type == "cpu" or device in _failed:
        return False
    if device.type != "cuda" or torch.version.hip is not None:
        kind = "ROCm" if device.type == "cuda" else device.type
        _give_up(device, f"the kernels are for NVIDIA's GPUs and {device} is of {kind}")
        return False
    return True


def falls_back() -> bool:
    """Whether the CPU's solver projects an accelerator's tensors in this process."""
    return bool(_failed)


def agree(device: torch.device, group: ProcessGroup) -> None:
    """Let all processes of a group, which draw the same tokens, project by one solver.

    It is the CPU's where Triton has failed in any of them by now. Where it fails in one of them
    later, that one raises RuntimeError: the others would go on and draw other tokens near a
    boundary. Call it in all of them, once the first rows were projected.
    """
    has_failed = torch.tensor(int(device in _failed))
    torch.distributed.all_reduce(has_failed, torch.distributed.ReduceOp.MAX, group)
    if has_failed and device not in _failed:
        _give_up(device, "Triton fails in another process that draws the same tokens")
    _agreed.add(device)


def _give_up(device: torch.device, what: str, reason: str = "") -> None:
    """Leave a device to the CPU's solver for the rest of the process."""
    if device in _agreed:
        raise RuntimeError(
            f"{what}, where other processes draw the same tokens and may go on by it{reason}"
        )
    _failed.add(device)
    logger.warning("%s, so the CPU's solver projects from here on%s", what, reason)


@cache
def check_rows(
    device: torch.device,
    dtypes: tuple[torch.dtype, torch.dtype],
    vocab_size: int,
    *,
    charge: Charge,
    is_keyed: bool,
) -> None:
    """Draw from rows of the risky and the safe model, in these dtypes, as decoding will.

    is_keyed: whether the numbers come from keys and positions.
    Runs once for each kind of launch, which it compiles, and waits for the device.
    Raises: RuntimeError where a token or a spend differs by more than both solvers may; whatever
    Triton raises where it cannot compile or launch.
    """
    generator = torch.Generator().manual_seed(0)
    shape = (2, len(BUDGETS), vocab_size)
    risky, safe = 3.0 * torch.randn(shape, generator=generator)
    risky[::2, 1::3], safe[1::3, 2::5] = -torch.inf, -torch.inf  # banned in some rows
    risky, safe = risky.to(dtypes[0]), safe.to(dtypes[1])
    budget, keys = torch.tensor(BUDGETS, dtype=torch.float64), torch.arange(len(BUDGETS))
    numbers = uniforms(keys, torch.zeros_like(keys))
    expected = solve.project(risky, safe, budget, numbers, charge=charge)
    drawn = _launched(
        risky.to(device),
        safe.to(device),
        budget,
        None if is_keyed else numbers,
        (keys, torch.zeros_like(keys)) if is_keyed else None,
        charge=charge,
    )
    assert expected.token_ids is not None and drawn.token_ids is not None  # as both have drawn
    token_ids, spend = drawn.token_ids, drawn.spend
    tolerance = SHORTFALL_FRACTION * budget + SHORTFALL_NATS
    for name, is_right in {
        "token": token_ids.cpu() == expected.token_ids,
        "spend": ((spend.cpu() - expected.spend).abs() <= tolerance) & (spend.cpu() <= budget),
    }.items():
        if not bool(is_right.all()):
            row = int((~is_right).nonzero()[0])
            raise RuntimeError(f"the {name} of row {row} is not that of the CPU's solver")
