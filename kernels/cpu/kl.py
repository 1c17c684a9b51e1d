"""The largest weight of the risky model whose KL divergence fits the budget, row by row."""

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
"""Nats; below, float32 knows KL no better than the variance of the tilt at beta = 0 does."""

NARROW = 1024
"""Columns of a row up to which a pass costs the same in float64, which proves what it finds."""

NEWTON_PASSES = 8
MAX_PASSES = 72
"""float64 passes before the last step, mostly one or two. After Newton's, bisection, a bit of the
mantissa each."""


class _Points(NamedTuple):
    """Points of the curve KL(beta), one a row; (A,) each."""

    beta: Floats
    log2_partition: Floats
    """log2 of the sum of p_s**(1 - beta) p_r**beta on the support, largest logits weighing 1."""
    kl: Floats
    """Nats, from the safe model on the support; inf where it is not known."""
    margin: Floats
    """Nats; the true KL is within it of `kl`."""
    speed: Floats
    """d sqrt(KL) / d beta; sqrt(KL) is nearly straight."""


class _Curves(NamedTuple):
    """A rows on their common supports."""

    bits: Tensor
    """(A, N, C), of the safe model, float32 or float64."""
    tilt: Tensor
    """(A, N, C), up to a constant of each row."""
    log2_shared: Floats
    """(A,), log2 of the weight at beta = 0."""
    rounding: float
    """Relative error bound of a sum of weights."""

    def take(self, rows: Numbers) -> _Curves:
        return _Curves(
            part(self.bits, rows), part(self.tilt, rows), self.log2_shared[rows], self.rounding
        )


def solve(rows: Rows, budget: Floats) -> Solution:
    """p* of R rows. budget: (R,) nats, multiples of the quantum."""
    solution = safe_solution(len(budget))
    # 1. What is left for the tilt once the common support is paid for. It is added to the floor
    #    again and must not round past the budget.
    allowance = budget - rows.floor - ALLOWANCE_ROUNDINGS * EPSILON * budget
    chosen = np.flatnonzero(rows.is_valid & (budget > 0.0) & (allowance >= 0.0))
    if len(chosen) > 0:
        # 2. The largest weight whose divergence fits; rows not chosen keep p_s.
        tolerance = np.maximum(SHORTFALL_FRACTION * budget, SHORTFALL_NATS)
        tolerance = np.minimum(tolerance, 0.5 * allowance)
        best = _largest_feasible(rows, chosen, allowance[chosen], tolerance[chosen])
        # 3. Its law, and its divergence rounded up by the margin as the spend.
        solution.weight[chosen] = solution.slope[chosen] = best.beta
        solution.offset[chosen] = rows.log2_safe_mass[chosen] - best.log2_partition
        solution.spend[chosen] = best.kl + best.margin + rows.floor[chosen]
        solution.is_safe_only[chosen] = False
    return solution


def _largest_feasible(rows: Rows, chosen: Numbers, allowance: Floats, tolerance: Floats) -> _Points:
    """The largest tried beta whose KL and margin do not exceed the allowance, nats; (A,) each.

    The search ends within the tolerance of the allowance, or four margins.
    """
    bits, tilt = part(rows.shared, chosen), part(rows.tilt, chosen)
    curves = _Curves(bits, tilt, rows.log2_shared[chosen], rows.rounding)
    work = rows.scratch[0, : len(chosen)]
    # 1. A guess in float32, whose passes cost half and which proves nothing: it aims at the middle
    #    of the tolerance, so that its error mostly stays on the feasible side.
    guess = _guess(curves, allowance - 0.5 * tolerance, work)
    # 2. Certified points in float64, from the guess on, for rows that are not near enough yet:
    #    mostly one. Only points whose KL and margin fit are kept, so any end of the search is safe.
    search = _Search(curves, allowance, tolerance, guess)
    open_rows = np.arange(len(chosen))
    for num_passes in range(MAX_PASSES):
        search.measure(open_rows, work, is_newton=num_passes < NEWTON_PASSES)
        open_rows = search.open_rows()
        if len(open_rows) == 0:
            break
    # 3. A last step to the aim, after which the answer no longer depends on the guess.
    search.polish(work)
    return search.best


class _Search:
    """Certified points of A rows."""

    def __init__(
        self, curves: _Curves, allowance: Floats, tolerance: Floats, guess: Floats
    ) -> None:
        self._curves, self._allowance, self._tolerance = curves, allowance, tolerance
        self._is_untilted = _is_zero(curves.tilt)
        self._beta, self._high = guess, np.full_like(guess, np.inf)
        # beta = 0 is the safe model on the support by definition.
        zeros = [np.zeros_like(guess) for _ in range(4)]
        self.best = _Points(zeros[0], curves.log2_shared.copy(), *zeros[1:])

    def open_rows(self) -> Numbers:
        """Rows that may still rise, and have not come near enough."""
        best = self.best
        # Neighbors: no number is left to be tried.
        can_rise = (best.beta < 1.0) & (np.nextafter(best.beta, 2.0) < self._high)
        slack = np.maximum(self._tolerance, 4.0 * best.margin)
        return np.flatnonzero(can_rise & (best.kl < self._allowance - slack))

    def measure(self, rows: Numbers, work: Tensor, *, is_newton: bool) -> None:
        """Measure these rows at their next betas, and choose those to follow."""
        beta, high = self._beta, self._high
        here, is_feasible = self._tried(rows, beta[rows], work)
        high[rows] = np.where(is_feasible, high[rows], here.beta)
        low = self.best.beta[rows]
        beta[rows] = _following(here, self._aim(rows), low, high[rows], is_newton=is_newton)

    def polish(self, work: Tensor) -> None:
        """One more Newton step to the aim, whose error is the square of the last one's.

        What is left of a budget then hardly depends on where the search came from: those who try
        budgets that they guess (`score`) find the same again for one that is a little different.
        """
        best = self.best
        rows = np.flatnonzero((best.beta > 0.0) & (best.beta < 1.0) & (best.speed > 0.0))
        if len(rows) == 0:
            return
        last = _Points(*(column[rows] for column in best))
        beta = last.beta + (np.sqrt(self._aim(rows)) - np.sqrt(last.kl)) / last.speed
        self._tried(rows, np.where((beta > 0.0) & (beta < 1.0), beta, last.beta), work)

    def _aim(self, rows: Numbers) -> Floats:
        """Nats that a step aims at, below the allowance, so that it mostly ends on this side."""
        slack = np.maximum(0.5 * self._tolerance, 2.0 * self.best.margin)
        aim: Floats = (self._allowance - slack)[rows]
        return aim

    def _tried(self, rows: Numbers, beta: Floats, work: Tensor) -> tuple[_Points, Flags]:
        """Points of these rows, and whether KL and margin fit; those that do are kept."""
        here = _certified(self._curves.take(rows), beta, self._is_untilted[rows], work)
        is_feasible: Flags = here.kl + here.margin <= self._allowance[rows]
        for column, new in zip(self.best, here, strict=True):
            column[rows] = np.where(is_feasible, new, column[rows])
        return here, is_feasible


def _is_zero(values: Tensor) -> Flags:
    """(A, N, C) -> (A,): no value of the row is anything else."""
    flags: Flags = (host(values.amax((1, 2))) == 0.0) & (host(values.amin((1, 2))) == 0.0)
    return flags


def _guess(curves: _Curves, aim: Floats, work: Tensor) -> Floats:
    """(A,) betas whose KL is about the aim, nats, by float32 sums, which prove nothing.

    work: (A, N, C) float64, to be written over.
    """
    # 1. KL is about beta^2 variance / 2 near beta = 0.
    _, mean, mean_square = _moments(curves, np.zeros_like(aim), work)
    variance = mean_square - mean * mean
    beta = np.fmin(np.sqrt(2.0 * aim / variance), 1.0)
    if curves.bits[0].numel() <= NARROW:
        return beta
    # 2. Newton in float32, with tilts less their mean, whose digits would hide small differences.
    is_over = aim < LEAST_GUESSED
    curves = _centered(curves, mean, work)
    scratch = torch.empty_like(curves.bits)
    low, high = np.zeros_like(beta), np.full_like(beta, np.inf)
    for _ in range(GUESS_PASSES):
        if is_over.all():
            break
        here = _points(curves, beta, scratch)
        is_below = here.kl <= aim
        low, high = np.where(is_below, beta, low), np.where(is_below, high, beta)
        following = np.where(is_over, beta, _following(here, aim, low, high, is_newton=True))
        is_over |= np.abs(following - beta) <= GUESS_STEP * beta
        beta = following
    return beta


def _centered(curves: _Curves, mean: Floats, work: Tensor) -> _Curves:
    """The curves in float32, with tilts less their mean at beta = 0, nats."""
    tilt = torch.sub(curves.tilt, columns(mean * BITS_PER_NAT, work), out=work).float()
    return curves._replace(bits=curves.bits.float(), tilt=tilt)


def _following(last: _Points, aim: Floats, low: Floats, high: Floats, *, is_newton: bool) -> Floats:
    """The next betas, (A,) above `low` and below `high`: a step in sqrt(KL), or the middle."""
    beta = np.minimum(last.beta + (np.sqrt(aim) - np.sqrt(last.kl)) / last.speed, 1.0)
    middle = low + 0.5 * (np.minimum(high, 1.0) - low)
    # 1 has not been tried while no end is known above.
    fallback = np.where(high == np.inf, 1.0, middle)
    return np.where((beta > low) & (beta < high) & is_newton, beta, fallback)


def _certified(curves: _Curves, beta: Floats, is_untilted: Flags, work: Tensor) -> _Points:
    """Points from float64 sums. Where no token of the support is tilted, KL is exactly 0."""
    points = _points(curves, beta, work)
    kl = np.where(np.isfinite(points.kl + points.margin), points.kl, np.inf)
    margin = np.where(is_untilted, 0.0, points.margin)
    return points._replace(kl=np.where(is_untilted, 0.0, kl), margin=margin)


def _points(curves: _Curves, beta: Floats, work: Tensor) -> _Points:
    """KL = beta psi' - psi with psi = log E_{p_s}[exp(beta d)], and KL' = beta psi''.

    The margin is derived in docs/guarantee.md: relative errors of the weights, and how far the
    divergence passes them on.
    """
    log2_partition, mean, mean_square = _moments(curves, beta, work)
    psi = (log2_partition - curves.log2_shared) / BITS_PER_NAT
    kl = np.maximum(beta * mean - psi, 0.0)
    variance = np.maximum(mean_square - mean * mean, 0.0)
    spread, drift = np.sqrt(mean_square), np.abs(psi)
    weight_error = curves.rounding + EPSILON * (spread + drift)
    margin = KL_MARGIN * weight_error * (1.0 + drift + beta * spread)
    return _Points(beta, log2_partition, kl, margin, beta * variance / (2.0 * np.sqrt(kl)))


def _moments(curves: _Curves, beta: Floats, work: Tensor) -> tuple[Floats, Floats, Floats]:
    """log2 of the sum of weights, mean and mean square of the tilt in nats; (A,) each."""
    weights = work[: len(beta)]
    torch.addcmul(curves.bits, columns(beta, weights), curves.tilt, out=weights)
    top = weights.amax((1, 2), keepdim=True)  # however far the models are apart, none underflows
    partition = sums(weights.sub_(top).exp2_())
    first = sums(weights.mul_(curves.tilt)) / partition
    second = sums(weights.mul_(curves.tilt)) / partition
    log2_partition = np.log2(partition) + host(top.double().flatten())
    return log2_partition, first / BITS_PER_NAT, second / BITS_PER_NAT**2
