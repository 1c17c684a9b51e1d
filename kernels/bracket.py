"""Bracketed inverse interpolation: the beta at which sqrt(KL) takes a given value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .tilt_points import Array, Rows, TiltPoints

# A rows, P points a row.


@dataclass(frozen=True, slots=True)
class Bracket:
    """For each row a point below the root and one above it, (A, 1) each."""

    lower: TiltPoints
    upper: TiltPoints

    @property
    def width(self) -> Array:
        """(A,)"""
        return (self.upper.beta - self.lower.beta)[:, 0]

    def take(self, rows: Rows) -> Bracket:
        return Bracket(self.lower.take(rows), self.upper.take(rows))

    def put(self, rows: Rows, other: Bracket) -> None:
        """Replace the brackets of `rows`."""
        self.lower.values[:, rows] = other.lower.values
        self.upper.values[:, rows] = other.upper.values


def bracket(points: TiltPoints, allowance: Array) -> Bracket:
    """The highest feasible point of each row and the lowest of the others above it.

    points: (A, P), of each row one at least feasible and one above it not. allowance: (A,) nats;
    a point is feasible if its KL plus its margin is not above it.
    """
    is_feasible = points.kl + points.margin <= allowance[:, None]
    lower = points.select(np.where(is_feasible, points.beta, -np.inf).argmax(1))
    is_above = ~is_feasible & (points.beta > lower.beta)
    upper = points.select(np.where(is_above, points.beta, np.inf).argmin(1))
    return Bracket(lower, upper)


def narrowed_by_estimates(interval: Bracket, estimates: TiltPoints, aim: Array) -> Bracket:
    """A tighter bracket of the root, good for interpolation but not proven.

    estimates: (A, P); those within their margin of the aim, or outside the bracket, are left out.
    aim: (A,) nats, the KL sought.
    """
    aim = aim[:, None]
    kl, beta = estimates.kl, estimates.beta
    is_usable = (np.abs(kl - aim) > estimates.margin) & np.isfinite(kl)
    is_usable &= (beta > interval.lower.beta) & (beta < interval.upper.beta)
    is_end = np.ones_like(is_usable, shape=(len(aim), 1))
    is_usable = np.concatenate([is_end, is_usable, is_end], axis=1)
    ends = (interval.lower.values, interval.upper.values)
    points = TiltPoints(np.concatenate([ends[0], estimates.values, ends[1]], axis=2))
    beta, is_below = points.beta, points.kl < aim
    # Where nothing is below, argmax picks the first point, which is the lower end.
    lower = points.select(np.where(is_usable & is_below, beta, -np.inf).argmax(1))
    is_above = is_usable & ~is_below & (beta > lower.beta)
    return Bracket(lower, points.select(np.where(is_above, beta, np.inf).argmin(1)))


def predicted_beta(interval: Bracket, kl: Array) -> tuple[Array, Array]:
    """Where the KL is reached, by the best interpolation that stays inside the bracket.

    kl: (A,) nats. Returns: beta (A,) strictly inside the bracket, and an estimate of its error.
    The quintic Hermite polynomial through both ends is tried first, then the cubic, then the
    tangent of the nearer end, then the midpoint.
    """
    root = np.sqrt(kl)
    lower, upper = _node(interval.lower), _node(interval.upper)
    cubic, quintic = _hermite(lower, upper, root)
    low, high = lower.beta, upper.beta
    width = high - low
    beta, error = low + 0.5 * width, 0.5 * width
    quarter = 0.25 * width
    for candidate, its_error in (
        (_tangent(lower, upper, root), quarter),
        (cubic, quarter),
        (quintic, np.minimum(np.abs(quintic - cubic), width)),
    ):
        is_inside = (candidate > low) & (candidate < high)
        beta = np.where(is_inside, candidate, beta)
        error = np.where(is_inside, its_error, error)
    return beta, np.where(error >= 0.0, error, width)


class _Node(NamedTuple):
    """One end of a bracket; (A,) each."""

    root: Array
    """sqrt(KL), the variable of the interpolation."""
    beta: Array
    velocity: Array
    acceleration: Array


def _node(point: TiltPoints) -> _Node:
    beta, _, kl, _, velocity, acceleration = point.values[..., 0]
    return _Node(np.sqrt(kl), beta, velocity, acceleration)


def _hermite(lower: _Node, upper: _Node, root: Array) -> tuple[Array, Array]:
    span = upper.root - lower.root
    t = (root - lower.root) / span
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


def _tangent(lower: _Node, upper: _Node, root: Array) -> Array:
    from_lower, from_upper = root - lower.root, root - upper.root
    is_near_lower = from_lower < -from_upper
    return np.where(
        is_near_lower,
        lower.beta + from_lower * lower.velocity,
        upper.beta + from_upper * upper.velocity,
    )
