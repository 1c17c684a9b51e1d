"""Bracketed inverse interpolation: the beta at which sqrt(KL) takes a given value."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .tilt_points import TiltPoint, ratio


class Bracket(NamedTuple):
    """A point below the root and one above it."""

    lower: TiltPoint
    upper: TiltPoint

    @property
    def width(self) -> float:
        return self.upper.beta - self.lower.beta


def narrowed(bracket: Bracket, points: Iterable[TiltPoint], allowance: float) -> Bracket:
    """The highest feasible point, and the lowest of the others above it.

    points: measured. allowance: nats; a point is feasible if its KL plus its margin is not above.
    """
    return _narrowed(bracket, [(point, point.kl + point.margin <= allowance) for point in points])


def narrowed_by_estimates(bracket: Bracket, estimates: Iterable[TiltPoint], aim: float) -> Bracket:
    """A tighter bracket of the root, good for interpolation but not proven.

    estimates: those within their margin of the aim, or outside the bracket, are left out. aim:
    nats, the KL sought.
    """
    low, high = bracket.lower.beta, bracket.upper.beta
    inside = [point for point in estimates if low < point.beta < high]
    usable = [point for point in inside if point.margin < abs(point.kl - aim)]
    return _narrowed(bracket, [(point, point.kl < aim) for point in usable])


def _narrowed(bracket: Bracket, points: Sequence[tuple[TiltPoint, bool]]) -> Bracket:
    """points: each with whether it lies below the root."""
    lower, upper = bracket
    for point, is_below in points:
        if is_below and lower.beta < point.beta:
            lower = point
    for point, is_below in points:
        if not is_below and lower.beta < point.beta < upper.beta:
            upper = point
    # By rounding the highest point below may pass one above: then nothing is left between.
    return Bracket(lower, upper if lower.beta < upper.beta else lower)


def predicted_beta(bracket: Bracket, kl: float) -> tuple[float, float]:
    """Where the KL is reached, by the best interpolation that stays inside the bracket.

    kl: nats. Returns: beta strictly inside the bracket, and an estimate of its error. The quintic
    Hermite polynomial through both ends is tried first, then the cubic, then the tangent of the
    nearer end, then the midpoint.
    """
    root, low, high = math.sqrt(kl), bracket.lower.beta, bracket.upper.beta
    width = high - low
    cubic, quintic = _hermite(bracket, root)
    if low < quintic < high:
        error = abs(quintic - cubic)
        return quintic, error if error < width else width
    for candidate in (cubic, _tangent(bracket, root)):
        if low < candidate < high:
            return candidate, 0.25 * width
    return low + 0.5 * width, 0.5 * width


def _hermite(bracket: Bracket, root: float) -> tuple[float, float]:
    """The cubic and the quintic through both ends, as functions of sqrt(KL)."""
    lower, upper = bracket
    start = math.sqrt(lower.kl)
    span = math.sqrt(upper.kl) - start
    t = ratio(root - start, span)
    rise = upper.beta - lower.beta
    speed_0, speed_1 = span * lower.velocity, span * upper.velocity
    square = span * span
    bend_0, bend_1 = square * lower.acceleration, square * upper.acceleration
    # What a straight line from the lower end with its own speed misses at the upper end.
    miss, turn = rise - speed_0, speed_1 - speed_0
    cubic = lower.beta + t * (speed_0 + t * (3.0 * miss - turn + t * (turn - 2.0 * miss)))
    miss, turn, bend = miss - 0.5 * bend_0, turn - bend_0, bend_1 - bend_0
    third = 10.0 * miss - 4.0 * turn + 0.5 * bend
    fourth = 7.0 * turn - 15.0 * miss - bend
    fifth = 6.0 * miss - 3.0 * turn + 0.5 * bend
    tail = t * (third + t * (fourth + t * fifth))
    return cubic, lower.beta + t * (speed_0 + t * (0.5 * bend_0 + tail))


def _tangent(bracket: Bracket, root: float) -> float:
    from_lower, from_upper = (root - math.sqrt(point.kl) for point in bracket)
    if from_lower < -from_upper:
        return bracket.lower.beta + from_lower * bracket.lower.velocity
    return bracket.upper.beta + from_upper * bracket.upper.velocity
