"""The projections: the law nearest to the risky model inside a ball around the safe one."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from .backend import check_rows, computed
from .cpu import solver
from .law import Projection
from .sampler import check_uniform, check_unit
from .spend import check_budget, usable_budget

__all__ = ["Projection", "project_kl", "project_max"]

# B requests, V vocabulary.


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
    backend: "torch", on the CPU wherever the tensors are; "triton", which needs CUDA tensors or
    Triton's interpreter and checks no values, so as not to wait for the device; or "auto": "triton"
    on CUDA where it compiles, launches and agrees with "torch" on a few rows.
    Returns: a Projection; the float64 KL at its weight is at most its spend, which is at most the
    budget. Where the budget binds and logits lie within +-100 the shortfall is at most
    max(1e-5 * budget, 1e-7) nats. A row's digits depend on nothing but the row.
    Raises: ValueError for a wrong shape or dtype, a NaN budget or an unknown backend.
    Source: paper algorithm ProjectKL, solved by Newton's method in sqrt(KL).
    """
    return _project(risky_logits, safe_logits, budget, uniform, backend, is_max=False)


def project_max(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None = None,
    *,
    backend: str = "auto",
) -> Projection:
    """The p* that minimises D_inf(p* || p_r) subject to D_inf(p* || p_s) <= budget, and a draw.

    On the common support S, p* = min(c p_r, e^budget p_s) with c >= 1 and p_r renormalised on S;
    the weight of the Projection is 1 / c. Arguments, spend and errors are those of `project_kl`,
    with D_inf(p* || p_s), the largest log-ratio, in place of the KL divergence.
    Source: paper, proposition on optimal Renyi clipping; c by Newton from c = 1, which climbs
    because the total mass is concave and piecewise linear in c, and bisection where it is slow.
    """
    return _project(risky_logits, safe_logits, budget, uniform, backend, is_max=True)


def _project(
    risky_logits: Tensor,
    safe_logits: Tensor,
    budget: Tensor,
    uniform: Tensor | None,
    backend: str,
    *,
    is_max: bool,
) -> Projection:
    _check_logits(risky_logits, safe_logits)
    (num_rows, vocab_size), device = safe_logits.shape, safe_logits.device
    check_budget(budget, num_rows)
    if uniform is not None:
        check_uniform(uniform, num_rows)
    pair = risky_logits, safe_logits

    def by_triton() -> Projection:
        from .gpu import launch  # triton is not there on every platform

        return launch.project(*pair, budget, uniform, is_max=is_max)

    def by_torch() -> Projection:
        if uniform is not None:
            check_unit(uniform)
        return solver.project(*pair, usable_budget(budget), uniform, is_max=is_max)

    dtypes = risky_logits.dtype, safe_logits.dtype
    test = partial(check_rows, device, dtypes, vocab_size, is_max=is_max, walks=False)
    return computed(backend, device, by_triton=by_triton, by_torch=by_torch, check=test)


def _check_logits(risky_logits: Tensor, safe_logits: Tensor) -> None:
    """Raise ValueError unless both are (B, V) of a float dtype, V >= 1, on one device."""
    if risky_logits.ndim != 2 or risky_logits.shape != safe_logits.shape:
        raise ValueError(
            f"risky_logits and safe_logits must both be (B, V), "
            f"got {tuple(risky_logits.shape)} and {tuple(safe_logits.shape)}"
        )
    if safe_logits.shape[1] == 0:
        raise ValueError("the vocabulary must hold at least 1 token, got 0")
    for logits in (risky_logits, safe_logits):
        if not logits.dtype.is_floating_point:
            raise ValueError(f"logits must have a float dtype, got {logits.dtype}")
    if risky_logits.device != safe_logits.device:
        raise ValueError(
            f"both logits must be on one device, got {risky_logits.device} and {safe_logits.device}"
        )
