"""The search of the KL projection over a few hundred symbols: numpy, for a torch operation costs
more than the sum that it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from .kl_target import FeasiblePoint, KlTarget
from .logit_pair import LogitPair
from .row_group import BAN_BITS, BITS_PER_NAT
from .spend import EPSILON
from .tilt_points import LEAST_PARTITION

# A rows still open, V symbols.

Array = NDArray[np.float64]

SMALL_VOCAB = 1024
"""Symbols up to which it runs: one row of 257 takes an eighth of the time of `search`."""

MAX_PASSES = 72
"""Newton takes about 4; bisection, which follows it, at most a bit of the mantissa each."""

NEWTON_PASSES = 8


class _Points(NamedTuple):
    beta: Array
    log2_partition: Array
    kl: Array
    """inf where the weights are too small to be trusted."""
    margin: Array
    speed: Array
    """d sqrt(KL) / d beta."""


class _Rows(NamedTuple):
    safe: Array
    """(A, V), log2 of the weight, -inf outside the common support."""
    tilt: Array
    """(A, V) bits, 0 outside."""
    is_untilted: NDArray[np.bool_]
    """The two laws are one on the common support, digit by digit."""
    rounding: Array
    log2_shared: Array
    allowance: Array
    tolerance: Array

    def take(self, rows: slice | NDArray[np.int64]) -> _Rows:
        return _Rows(
            self.safe[rows],
            self.tilt[rows],
            self.is_untilted[rows],
            self.rounding[rows],
            self.log2_shared[rows],
            self.allowance[rows],
            self.tolerance[rows],
        )


@np.errstate(divide="ignore", invalid="ignore", over="ignore")
def largest_feasible(
    pair: LogitPair, rows: Tensor, targets: Sequence[KlTarget]
) -> list[FeasiblePoint]:
    """`search.largest_feasible` for logits on the CPU, by Newton's method in sqrt(KL).

    rows: (A,) int64, rows of the pair that have a common support. targets: A of them. A row's
    result does not depend on the others.
    """
    allowance, tolerance, log2_shared, rounding, _ = np.array(targets).reshape(-1, 5).T
    safe, tilt = _shared_bits(pair, rows)
    is_untilted = np.asarray(~tilt.any(axis=1))
    part = _Rows(safe, tilt, is_untilted, rounding, log2_shared, allowance, tolerance)
    best = _points(part, np.zeros(len(safe)))
    best.kl[:] = best.margin[:] = 0.0  # beta = 0 is the safe model there by definition
    newest = _Points(*(column.copy() for column in best))
    high = np.full(len(safe), math.inf)
    for num_passes in range(MAX_PASSES):
        is_open = _is_open(part, best, high)
        if not is_open.any():
            break
        # Most often all rows: a slice is a view, a tenth of the cost of an index.
        still = slice(None) if is_open.all() else np.flatnonzero(is_open)
        here = part.take(still)
        low = _Points(*(column[still] for column in best))
        last = _Points(*(column[still] for column in newest))
        beta = _trial(here, low, high[still], last, is_newton=num_passes < NEWTON_PASSES)
        points = _points(here, beta)
        is_feasible = points.kl + points.margin <= here.allowance
        high[still] = np.where(is_feasible, high[still], beta)
        for column, kept, new in zip(best, newest, points, strict=True):
            column[still] = np.where(is_feasible, new, column[still])
            kept[still] = new
    return [FeasiblePoint(*point) for point in np.array(best[:4]).T.tolist()]


def _shared_bits(pair: LogitPair, rows: Tensor) -> tuple[Array, Array]:
    safe, risky = (
        (logits[rows].double().numpy() - peak[rows].numpy()) * BITS_PER_NAT
        for logits, peak in ((pair.safe, pair.safe_peak), (pair.risky, pair.risky_peak))
    )
    if not pair.has_bans:
        return safe, risky - safe
    is_outside = (safe < BAN_BITS) | (risky < BAN_BITS)
    tilt = np.where(is_outside, 0.0, risky - safe)
    return np.where(is_outside, -math.inf, safe), tilt


def _is_open(rows: _Rows, low: _Points, high: Array) -> NDArray[np.bool_]:
    slack = np.maximum(rows.tolerance, 4.0 * low.margin)
    # Neighbours: no number is left to be tried.
    can_rise = (low.beta < 1.0) & (np.nextafter(low.beta, 2.0) < high)
    is_open: NDArray[np.bool_] = can_rise & (low.kl < rows.allowance - slack)
    return is_open


def _trial(rows: _Rows, low: _Points, high: Array, last: _Points, *, is_newton: bool) -> Array:
    """(A,) between the feasible end and the other."""
    aim = rows.allowance - np.maximum(0.5 * rows.tolerance, 2.0 * low.margin)
    step = (np.sqrt(aim) - np.sqrt(last.kl)) / last.speed
    beta = np.minimum(last.beta + step, 1.0)
    middle = low.beta + 0.5 * (np.minimum(high, 1.0) - low.beta)
    is_inside = (beta > low.beta) & (beta < high)
    # 1 has not been tried while no end is known above.
    fallback = np.where(high == math.inf, 1.0, middle)
    return np.where(is_inside & is_newton, beta, fallback)


def _points(rows: _Rows, beta: Array) -> _Points:
    """See `tilt_points.certified_points`: KL = beta psi' - psi with psi = log E[exp(beta d)]."""
    weights = np.exp2(rows.safe + beta[:, None] * rows.tilt)
    partition = weights.sum(1)
    tilted = weights * rows.tilt
    mean = tilted.sum(1) / partition / BITS_PER_NAT
    mean_square = (tilted * rows.tilt).sum(1) / partition / BITS_PER_NAT**2
    log2_partition = np.log2(partition)
    psi = (log2_partition - rows.log2_shared) / BITS_PER_NAT
    kl = np.maximum(beta * mean - psi, 0.0)
    variance = np.maximum(mean_square - mean * mean, 0.0)
    speed = np.where(beta == 0.0, np.sqrt(0.5 * variance), beta * variance / (2.0 * np.sqrt(kl)))
    spread, drift = np.sqrt(mean_square), np.abs(psi)
    weight_error = rows.rounding + EPSILON * (spread + drift)
    margin = 8.0 * weight_error * (1.0 + drift + beta * spread)
    is_known = (log2_partition > LEAST_PARTITION) & np.isfinite(kl)
    kl = np.where(rows.is_untilted, 0.0, np.where(is_known, kl, math.inf))
    return _Points(beta, log2_partition, kl, np.where(rows.is_untilted, 0.0, margin), speed)
