"""The largest weight of the risky model whose KL divergence fits the budget, row by row.

`reference.tilted_log_probs` defines the distribution of a weight. Its KL divergence from the safe
model grows with the weight, along a curve whose root is nearly straight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..certificate import ALLOWANCE_ROUNDINGS, KL_MARGIN, SHORTFALL_FRACTION, SHORTFALL_NATS
from ..spend import BITS_PER_NAT, EPSILON
from .rows import Flags, Floats, Numbers, Rows, Solution, columns, host, part, safe_solution, sums

# A rows whose weight is sought, R rows read together, N pieces of a row, C columns of a piece.

GUESS_PASSES = 24
"""float32 passes at most; Newton takes about 3, and a curve with a sharp bend is bisected."""

GUESS_STEP = 1e-3
"""A relative Newton step below it is the last: what that misses is about its square."""

LEAST_GUESSED = 1e-6
"""Nats; below, float32 knows a KL no better than the variance of the tilt at weight 0."""

NARROW = 1024
"""Columns of a row up to which a pass costs the same in float64, which proves what it finds."""

NEWTON_PASSES = 8
MAX_PASSES = 72
"""float64 passes, mostly one. After Newton's, bisection, a bit of the mantissa each."""


class _Points(NamedTuple):
    """Points of the curve, one a row; (A,) each."""

    weight: Floats
    log2_partition: Floats
    """log2 of the sum of p_s**(1 - weight) p_r**weight on the support, largest logits weighing
    1."""
    nats: Floats
    """KL from the safe model on the support; inf where it is not known."""
    margin: Floats
    """Nats; the true KL is within it of `nats`."""
    speed: Floats
    """d sqrt(nats) / d weight; the root is nearly straight."""


class _Curves(NamedTuple):
    """A rows on their common supports."""

    bits: Tensor
    """(A, N, C), of the safe model, float32 or float64."""
    tilt: Tensor
    """(A, N, C), up to a constant of each row."""
    log2_shared: Floats
    """(A,), log2 of the partition sum at weight 0."""
    is_untilted: Flags
    """(A,): both models agree on every token of the support: no divergence at any weight."""
    rounding: float
    """Relative error bound of a sum of weights."""

    def take(self, rows: Numbers) -> _Curves:
        return _Curves(
            bits=part(self.bits, rows),
            tilt=part(self.tilt, rows),
            log2_shared=self.log2_shared[rows],
            is_untilted=self.is_untilted[rows],
            rounding=self.rounding,
        )


def solve(rows: Rows, budget: Floats) -> Solution:
    """p* of R rows. budget: (R,) nats, multiples of the quantum."""
    solution = safe_solution(len(budget))
    # 1. What is left for the tilt once the common support is paid for. It is added to the floor
    #    again and must not round past the budget.
    allowance = budget - rows.floor - ALLOWANCE_ROUNDINGS * EPSILON * budget
    chosen = np.flatnonzero(rows.is_valid & (budget > 0.0) & (allowance >= 0.0))
    if len(chosen) > 0:
        # 2. The largest weight whose KL fits; rows not chosen keep p_s.
        tolerance = np.maximum(SHORTFALL_FRACTION * budget, SHORTFALL_NATS)
        tolerance = np.minimum(tolerance, 0.5 * allowance)
        work = rows.scratch[0, : len(chosen)]
        best = _search(read_curves(rows, chosen), allowance[chosen], tolerance[chosen], work)
        # 3. Its distribution, and its KL and margin as the spend.
        solution.weight[chosen] = solution.slope[chosen] = best.weight
        solution.offset[chosen] = rows.log2_safe_mass[chosen] - best.log2_partition
        solution.spend[chosen] = best.nats + best.margin + rows.floor[chosen]
        solution.is_safe_only[chosen] = False
    return solution


def read_curves(rows: Rows, chosen: Numbers) -> _Curves:
    tilt = part(rows.tilt, chosen)
    is_untilted: Flags = (host(tilt.amax((1, 2))) == 0.0) & (host(tilt.amin((1, 2))) == 0.0)
    return _Curves(
        bits=part(rows.shared, chosen),
        tilt=tilt,
        log2_shared=rows.log2_shared[chosen],
        is_untilted=is_untilted,
        rounding=rows.rounding,
    )


def _search(curves: _Curves, allowance: Floats, tolerance: Floats, work: Tensor) -> _Points:
    """The largest tried weight whose KL and margin do not exceed the allowance; (A,) each.

    allowance, tolerance: nats. The search ends within the tolerance of the allowance, or four
    margins. work: (A, N, C) float64, to be written over.
    """
    # Weight 0 is the safe model on the support by definition.
    zeros = [np.zeros_like(allowance) for _ in range(4)]
    best = _Points(zeros[0], curves.log2_shared.copy(), *zeros[1:])
    high = np.full_like(allowance, np.inf)
    # 1. A guess in float32, whose passes cost half and which proves nothing: it aims at the middle
    #    of the tolerance, so that its error mostly stays on the feasible side.
    trial = _guess(curves, allowance - 0.5 * tolerance, work)
    open_rows = np.arange(len(allowance))
    for num_passes in range(MAX_PASSES):
        # 2. KL and its margin in float64, mostly once. Only points at which both fit
        #    are kept, so the search may end anywhere.
        here = certified(curves.take(open_rows), trial[open_rows], work)
        fits: Flags = here.nats + here.margin <= allowance[open_rows]
        for column, new in zip(best, here, strict=True):
            column[open_rows] = np.where(fits, new, column[open_rows])
        high[open_rows] = np.where(fits, high[open_rows], here.weight)
        # 3. Rows are done that have come near enough, or have no number left to try.
        can_rise = (best.weight < 1.0) & (np.nextafter(best.weight, 2.0) < high)
        slack = np.maximum(tolerance, 4.0 * best.margin)
        is_open = can_rise & (best.nats < allowance - slack)
        is_here = is_open[open_rows]
        open_rows, here = open_rows[is_here], _Points(*(column[is_here] for column in here))
        if len(open_rows) == 0:
            break
        # 4. The others step to half of that slack below the allowance, to end on this side of it.
        aim = (allowance - 0.5 * slack)[open_rows]
        bracket = best.weight[open_rows], high[open_rows]
        is_newton = num_passes < NEWTON_PASSES
        trial[open_rows] = _next_weight(here, aim, *bracket, is_newton=is_newton)
    return best


def _guess(curves: _Curves, aim: Floats, work: Tensor) -> Floats:
    """(A,) weights whose KL is about the aim, nats, by float32 sums, which prove nothing.

    work: (A, N, C) float64, to be written over.
    """
    # 1. KL is about weight^2 variance / 2 near weight 0.
    _, mean, mean_square = _moments(curves, np.zeros_like(aim), work)
    variance = mean_square - mean * mean
    weight = np.fmin(np.sqrt(2.0 * aim / variance), 1.0)
    if curves.bits[0].numel() <= NARROW:
        return weight
    # 2. Newton in float32, with tilts less their mean, whose digits would hide small differences.
    is_over = aim < LEAST_GUESSED
    tilt = torch.sub(curves.tilt, columns(mean * BITS_PER_NAT, work), out=work).float()
    curves = curves._replace(bits=curves.bits.float(), tilt=tilt)
    scratch = torch.empty_like(curves.bits)
    low, high = np.zeros_like(weight), np.full_like(weight, np.inf)
    for _ in range(GUESS_PASSES):
        if is_over.all():
            break
        here = _points(curves, weight, scratch)
        is_below = here.nats <= aim
        low, high = np.where(is_below, weight, low), np.where(is_below, high, weight)
        following = np.where(is_over, weight, _next_weight(here, aim, low, high, is_newton=True))
        is_over |= np.abs(following - weight) <= GUESS_STEP * weight
        weight = following
    return weight


def _next_weight(
    last: _Points, aim: Floats, low: Floats, high: Floats, *, is_newton: bool
) -> Floats:
    """The next weights, (A,) above `low` and below `high`: a step in the root of KL, or the
    middle."""
    weight = np.minimum(last.weight + (np.sqrt(aim) - np.sqrt(last.nats)) / last.speed, 1.0)
    middle = low + 0.5 * (np.minimum(high, 1.0) - low)
    # 1 has not been tried while no end is known above.
    fallback = np.where(high == np.inf, 1.0, middle)
    return np.where((weight > low) & (weight < high) & is_newton, weight, fallback)


def certified(curves: _Curves, weight: Floats, work: Tensor) -> _Points:
    """Points from float64 sums. Where no token of the support is tilted, they are exactly 0."""
    here = _points(curves, weight, work)
    nats = np.where(np.isfinite(here.nats + here.margin), here.nats, np.inf)
    margin = np.where(curves.is_untilted, 0.0, here.margin)
    return here._replace(nats=np.where(curves.is_untilted, 0.0, nats), margin=margin)


def _points(curves: _Curves, beta: Floats, work: Tensor) -> _Points:
    """KL = beta psi' - psi with psi = log E_{p_s}[exp(beta d)], and KL' = beta psi''.

    beta: (A,). work: (A, N, C) of the dtype of the sums, to be written over.
    The margin is derived in docs/certificate.md: relative errors of the weights, and how far KL
    passes them on.
    """
    log2_partition, mean, mean_square = _moments(curves, beta, work)
    psi = (log2_partition - curves.log2_shared) / BITS_PER_NAT
    kl = np.maximum(beta * mean - psi, 0.0)
    variance = np.maximum(mean_square - mean * mean, 0.0)
    spread, drift = np.sqrt(mean_square), np.abs(psi)
    weight_error = curves.rounding + EPSILON * (spread + drift)
    margin = KL_MARGIN * weight_error * (1.0 + drift + beta * spread)
    return _Points(beta, log2_partition, kl, margin, beta * variance / (2.0 * np.sqrt(kl)))


def _moments(curves: _Curves, weight: Floats, work: Tensor) -> tuple[Floats, Floats, Floats]:
    """log2 of the partition sum, mean and mean square of the tilt in nats; (A,) each."""
    weights = work[: len(weight)]
    torch.addcmul(curves.bits, columns(weight, weights), curves.tilt, out=weights)
    top = weights.amax((1, 2), keepdim=True)  # however far the models are apart, none underflows
    partition = sums(weights.sub_(top).exp2_())
    first = sums(weights.mul_(curves.tilt)) / partition
    second = sums(weights.mul_(curves.tilt)) / partition
    log2_partition = np.log2(partition) + host(top.double().flatten())
    return log2_partition, first / BITS_PER_NAT, second / BITS_PER_NAT**2
