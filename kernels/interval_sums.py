"""Log-sums of intervals of many rows at once: from next-token scores to those of next bytes."""

import torch
from torch import Tensor

from .backend import resolved_backend

# N rows of scores, V columns, R sums of S symbols each, H terms of a sum.


def interval_log_sums(
    scores: Tensor,
    rows: Tensor,
    shifts: Tensor,
    low: Tensor,
    high: Tensor,
    *,
    backend: str = "auto",
) -> Tensor:
    """log of the sum over h of exp(shifts[r, h]) times the sum of exp(scores[rows[r, h], i]) over
    low[r, h, s] <= i < high[r, h, s].

    scores: (N, V) float32 or float64, rows contiguous; -inf is no mass. rows: (R, H) int32 in
    [0, N). shifts: (R, H) float64, -inf leaves a term out. low, high: (R, H, S) int32 in [0, V].
    backend: "torch", the definition; "triton", one launch; "auto": "triton" on CUDA.
    Returns: (R, S) float64 nats, -inf for nothing, each within 1e-12 of its value: small sums lose
    nothing to large ones. NaN stays NaN. A value depends on its own row alone and is the same in
    every run. On a device nothing waits for it.
    Raises: ValueError for a wrong shape or dtype, or tensors that Triton cannot reach.
    Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", alg. 3.
    """
    _check(scores, rows, shifts, low, high)
    if resolved_backend(backend, scores.device) == "torch":
        return _defined(scores, rows, shifts, low, high)
    from .gpu.interval_sums import launched_sums

    return launched_sums(scores, rows, shifts, low, high)


def _defined(scores: Tensor, rows: Tensor, shifts: Tensor, low: Tensor, high: Tensor) -> Tensor:
    sums = torch.full((len(low), low.shape[-1]), -torch.inf, dtype=torch.float64)
    for place, term, symbol in (low < high).nonzero().tolist():
        row, shift = rows[place, term], shifts[place, term]
        part = scores[row, low[place, term, symbol] : high[place, term, symbol]].double()
        total = torch.logaddexp(sums[place, symbol], part.logsumexp(0) + shift)
        sums[place, symbol] = total
    return sums.to(scores.device)


def _check(scores: Tensor, rows: Tensor, shifts: Tensor, low: Tensor, high: Tensor) -> None:
    if scores.ndim != 2 or scores.stride(1) != 1:
        raise ValueError(f"scores must be (N, V) with contiguous rows, got {tuple(scores.shape)}")
    if low.ndim != 3 or low.shape != high.shape or rows.shape != low.shape[:2]:
        raise ValueError(
            "rows must be (R, H), low and high (R, H, S), got "
            f"{tuple(rows.shape)}, {tuple(low.shape)} and {tuple(high.shape)}"
        )
    if shifts.shape != rows.shape or shifts.dtype != torch.float64:
        raise ValueError(
            f"shifts must be {tuple(rows.shape)} float64, got {tuple(shifts.shape)} {shifts.dtype}"
        )
    if any(values.dtype != torch.int32 for values in (rows, low, high)):
        raise ValueError("rows, low and high must be int32")
