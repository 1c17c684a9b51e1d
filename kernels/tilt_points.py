"""Divergences of the tilted family from its power sums, with a bound on their rounding error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .row_group import BITS_PER_NAT
from .tilt import TiltSums

Array = NDArray[np.float64]
Rows = slice | NDArray[np.intp]

# A rows, P points (betas) a row.

LEAST_PARTITION = -900.0
"""log2 of the least float64 sum that is trusted; less needs logits beyond +-300 nats."""

LEAST_ESTIMATE = -40.0
"""The same for the float32 sums of `tilt.statistics`."""

ESTIMATE_ROUNDING = 1e-6
"""Usual relative error of the float32 sums, generously."""

EXPANSION_ERROR = 4e-6
"""Fraction of the KL sought, the search stops within 9e-6; it counts as spent."""

LOG_PARTITION_ERROR = 1e-11
"""Nats; how exact the sum of the weights must be where it is not measured but expanded."""

TILT_ROUNDING = 1e-9
"""Nats, added to the range of the tilts for the rounding of each."""

UNKNOWN_BETA = 2.0
"""Halfway to it from 0 lies beta = 1, which is what a search without any knowledge tries first."""


@dataclass(frozen=True, slots=True)
class TiltPoints:
    """KL(p_beta || p_s on the common support) at several betas a row, and the curve's shape there.

    With s = sqrt(KL), a nearly straight function of beta, `velocity` is d beta / d s and
    `acceleration` its derivative. A point that is not known has KL = inf.
    """

    values: Array
    """(6, A, P): the properties below, in order."""

    @property
    def beta(self) -> Array:
        return self.values[0, :]

    @property
    def log2_partition(self) -> Array:
        """log2 of the sum of the weights of `TiltSums`."""
        return self.values[1, :]

    @property
    def kl(self) -> Array:
        """Nats, at least 0."""
        return self.values[2, :]

    @property
    def margin(self) -> Array:
        """Nats; the true KL is within it of `kl`."""
        return self.values[3, :]

    @property
    def velocity(self) -> Array:
        return self.values[4, :]

    @property
    def acceleration(self) -> Array:
        return self.values[5, :]

    def take(self, rows: Rows) -> TiltPoints:
        return TiltPoints(self.values[:, rows])

    def select(self, point: NDArray[np.intp]) -> TiltPoints:
        """One point a row: point (A,) in [0, P); the result has P = 1."""
        return TiltPoints(self.values[:, np.arange(len(point)), point][..., None])


class TiltMoments(NamedTuple):
    """Moments of the tilt under p_beta, and where they were taken; (A, P) each."""

    beta: Array
    log2_partition: Array
    """log2 of the sum of the weights of `TiltSums`."""
    mean: Array
    """Nats."""
    mean_square: Array
    variance: Array
    skew: Array
    """The third central moment."""


def tilt_moments(sums: TiltSums) -> TiltMoments:
    partition, *higher = (sums.sums[..., power] for power in range(4))
    mean, mean_square, mean_cube = (x / partition for x in higher)
    variance = np.maximum(mean_square - mean * mean, 0.0)
    skew = mean_cube - mean * (mean_square + 2.0 * variance)
    return TiltMoments(sums.beta, np.log2(partition), mean, mean_square, variance, skew)


def certified_points(
    rounding: Array, moments: TiltMoments, log2_shared: Array, is_untilted: NDArray[np.bool_]
) -> TiltPoints:
    """Divergences from float64 sums, each with a bound on its rounding error.

    rounding: (A,), `LogitPair.rounding` of the rows. log2_shared: (A,), log2 of the safe weight on
    the common support. is_untilted: (A,), the tilt is 0 wherever p_s has weight; where it is 0
    under p_beta too, the two laws are one and the divergence is exactly 0.
    """
    points = _points(moments, log2_shared[:, None], rounding[:, None])
    _forget(points, moments.log2_partition > LEAST_PARTITION)
    is_same = is_untilted[:, None] & (moments.mean_square == 0.0)
    points.values[2:4, is_same] = 0.0
    return points


def settled_points(
    points: TiltPoints, moments: TiltMoments, tilt_range: Array, aim: Array
) -> TiltPoints:
    """Points near the certified ones whose KL is the aim, found and certified by Taylor expansion.

    points, moments: (A, P), what was measured. tilt_range: (A,) bits by which the tilts of a row
    differ at most. aim: (A,) nats. Not known where the expansion might err by more than
    EXPANSION_ERROR of the aim in KL, or LOG_PARTITION_ERROR in the sum of the weights.

    Let D be the range of the tilt, V its variance at beta, and step the way from there. In between
    the probabilities change by a factor of exp(step D) at most, so there the cumulants are bounded:
    |k3| <= D V exp(step D) and |k4| <= D^2 V exp(step D). They are what the remainders consist of:
    k4 in log Z, and 2 k3 + beta k4 in KL, which are their next derivatives.
    """
    beta, log2_partition, mean, _, variance, skew = moments
    reach = tilt_range[:, None] / BITS_PER_NAT + TILT_ROUNDING
    rise = np.sqrt(aim[:, None]) - np.sqrt(points.kl)
    step = rise * (points.velocity + 0.5 * rise * points.acceleration)
    kl = points.kl + step * (beta * variance + 0.5 * step * (variance + beta * skew))
    nats = step * (mean + step * (0.5 * variance + step * skew / 6.0))
    length = np.abs(step)
    cube = length**3 * reach * variance * np.exp(length * reach)
    kl_error = cube * (2.0 + reach) / 6.0
    is_known = (kl_error <= EXPANSION_ERROR * aim[:, None]) & (beta + step <= 1.0)
    is_known &= cube * length * reach / 24.0 <= LOG_PARTITION_ERROR
    columns = [
        beta + step,
        log2_partition + nats * BITS_PER_NAT,
        kl,
        points.margin + kl_error + LOG_PARTITION_ERROR,
        points.velocity,
        points.acceleration,
    ]
    return TiltPoints(np.where(is_known, np.array(columns), unknown_point(points).values))


def estimated_points(moments: TiltMoments) -> TiltPoints:
    """Divergences from `statistics`; the margin is a usual error, not a bound."""
    # Their own sum at beta = 0: the rounding that all points share then cancels.
    points = _points(moments, moments.log2_partition[:, :1], np.array(ESTIMATE_ROUNDING))
    _forget(points, moments.log2_partition > LEAST_ESTIMATE)
    return points


def start_point(moments: TiltMoments, log2_shared: Array) -> TiltPoints:
    """beta = 0, where p_0 is p_s on the common support by definition: KL and margin are 0.

    moments: the first point has beta = 0. There KL = V beta^2 / 2 + T beta^3 / 3 + ... with V and T
    the variance and the third central moment of the tilt, which gives the shape of the curve.
    """
    variance, skew = moments.variance[:, :1], moments.skew[:, :1]
    zero = np.zeros_like(variance)
    velocity = 1.0 / np.sqrt(0.5 * variance)
    acceleration = -4.0 / 3.0 * skew / (variance * variance)
    return TiltPoints(np.array([zero, log2_shared[:, None], zero, zero, velocity, acceleration]))


def unknown_point(like: TiltPoints) -> TiltPoints:
    """A point above every beta, not known to be feasible."""
    unknown = np.full_like(like.values, np.inf)
    unknown[0] = UNKNOWN_BETA
    return TiltPoints(unknown)


def _points(moments: TiltMoments, log2_shared: Array, rounding: Array) -> TiltPoints:
    """KL(p_beta || p_s) = beta psi' - psi with psi = log E_{p_s}[exp(beta d)]; KL' = beta psi''."""
    beta, log2_partition, mean, mean_square, variance, skew = moments
    psi = (log2_partition - log2_shared) / BITS_PER_NAT
    kl = np.maximum(beta * mean - psi, 0.0)
    root = np.sqrt(kl)
    slope = beta * variance / (2.0 * root)
    bend = (variance + beta * skew) / (2.0 * root) - slope * slope / root
    margin = _margin(rounding, np.abs(psi), beta, np.sqrt(mean_square))
    velocity = 1.0 / slope
    return TiltPoints(np.array([beta, log2_partition, kl, margin, velocity, -bend * velocity**3]))


def _forget(points: TiltPoints, is_known: NDArray[np.bool_]) -> None:
    """Mark points that are not known, or whose KL is no number, as such."""
    points.kl[~(is_known & np.isfinite(points.kl))] = np.inf


def _margin(rounding: Array, psi: Array, beta: Array, spread: Array) -> Array:
    """To first order: relative errors of the weights, and how far the divergence passes them on.

    psi is its absolute value; spread is the root mean square of the tilt.
    """
    weight_error = rounding + np.finfo(np.float64).eps * (spread + psi)
    return 8.0 * weight_error * (1.0 + psi + beta * spread)
