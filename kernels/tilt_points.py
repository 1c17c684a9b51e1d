"""Divergences of the tilted family from its power sums, with a bound on their rounding error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from .row_group import BITS_PER_NAT
from .spend import EPSILON

LEAST_PARTITION = -900.0
"""log2 of the least float64 sum that is trusted; less needs logits beyond +-300 nats."""

LEAST_ESTIMATE = -40.0
"""The same for the float32 sums of `tilt.statistics`."""

ESTIMATE_ROUNDING = 5e-6
"""Usual relative error of the float32 sums. It depends on how BLAS adds: on Zen 5e-6 was seen at
9,000 terms and 2e-5 at 128,256. An estimate that is worse misguides a pass and no more."""

EXPANSION_ERROR = 4e-6
"""Fraction of the KL sought, the search stops within 9e-6; it counts as spent."""

LOG_PARTITION_ERROR = 1e-11
"""Nats; how exact the sum of the weights must be where it is not measured but expanded."""

TILT_ROUNDING = 1e-9
"""Nats, added to the range of the tilts for the rounding of each."""

UNKNOWN_BETA = 2.0
"""Halfway to it from 0 lies beta = 1, which is what a search without any knowledge tries first."""


class TiltPoint(NamedTuple):
    """KL(p_beta || p_s on the common support) at one beta, and the curve's shape there.

    With s = sqrt(KL), a nearly straight function of beta, `velocity` is d beta / d s and
    `acceleration` its derivative; NaN where the curve has none.
    """

    beta: float
    log2_partition: float
    """log2 of the sum of the weights of `TiltSums`."""
    kl: float
    """Nats, at least 0; inf where it is not known."""
    margin: float
    """Nats; the true KL is within it of `kl`."""
    velocity: float
    acceleration: float


UNKNOWN_POINT = TiltPoint(UNKNOWN_BETA, math.nan, math.inf, math.inf, math.nan, math.nan)
"""A point above every beta, not known to be feasible."""


class TiltMoments(NamedTuple):
    """Moments of the tilt under p_beta, and where they were taken."""

    beta: float
    log2_partition: float
    """log2 of the sum of the weights of `TiltSums`, -inf if all of them were lost."""
    mean: float
    """Nats."""
    mean_square: float
    variance: float
    skew: float
    """The third central moment."""


def tilt_moments(beta: float, sums: Sequence[float]) -> TiltMoments:
    """sums: of the powers from 0 to 3, as in `TiltSums`."""
    partition, *higher = sums
    if not partition > 0.0:
        return TiltMoments(beta, -math.inf, *4 * [math.nan])
    mean, mean_square, mean_cube = (x / partition for x in higher)
    variance = max(mean_square - mean * mean, 0.0)
    skew = mean_cube - mean * (mean_square + 2.0 * variance)
    return TiltMoments(beta, math.log2(partition), mean, mean_square, variance, skew)


def certified_point(
    rounding: float, moments: TiltMoments, log2_shared: float, *, is_untilted: bool
) -> TiltPoint:
    """The divergence from float64 sums, with a bound on its rounding error.

    rounding: `LogitPair.rounding` of the row. log2_shared: log2 of the safe weight on the common
    support. is_untilted: the tilt is 0 wherever p_s has weight; where it is 0 under p_beta too, the
    two laws are one and the divergence is exactly 0.
    """
    if is_untilted and moments.mean_square == 0.0:
        beta, log2_partition = moments[:2]
        return TiltPoint(beta, log2_partition, 0.0, 0.0, math.nan, math.nan)
    return _point(moments, log2_shared, rounding, LEAST_PARTITION)


def settled_point(
    point: TiltPoint, moments: TiltMoments, tilt_range: float, aim: float
) -> TiltPoint | None:
    """The point near a certified one whose KL is the aim, found and certified by Taylor expansion.

    moments: what was measured at the point. tilt_range: bits by which the tilts of the row differ
    at most. aim: nats. Returns: None where the expansion might err by more than EXPANSION_ERROR of
    the aim in KL, or LOG_PARTITION_ERROR in the sum of the weights.

    Let D be the range of the tilt, V its variance at beta, and step the way from there. In between
    the probabilities change by a factor of exp(step D) at most, so there the cumulants are bounded:
    |k3| <= D V exp(step D) and |k4| <= D^2 V exp(step D). They are what the remainders consist of:
    k4 in log Z, and 2 k3 + beta k4 in KL, which are their next derivatives.
    """
    beta, log2_partition, mean, _, variance, skew = moments
    reach = tilt_range / BITS_PER_NAT + TILT_ROUNDING
    rise = math.sqrt(aim) - math.sqrt(point.kl)
    step = rise * (point.velocity + 0.5 * rise * point.acceleration)
    length = abs(step)
    if not (beta + step <= 1.0 and length * reach < 1.0):
        return None
    cube = length * length * length * reach * variance * math.exp(length * reach)
    kl_error = cube * (2.0 + reach) / 6.0
    is_exact = cube * length * reach / 24.0 <= LOG_PARTITION_ERROR
    if not (is_exact and kl_error <= EXPANSION_ERROR * aim):
        return None
    nats = step * (mean + step * (0.5 * variance + step * skew / 6.0))
    return TiltPoint(
        beta=beta + step,
        log2_partition=log2_partition + nats * BITS_PER_NAT,
        kl=point.kl + step * (beta * variance + 0.5 * step * (variance + beta * skew)),
        margin=point.margin + kl_error + LOG_PARTITION_ERROR,
        velocity=point.velocity,
        acceleration=point.acceleration,
    )


def estimated_point(moments: TiltMoments, log2_partition_at_0: float) -> TiltPoint:
    """The divergence from `statistics`; the margin is a usual error, not a bound.

    log2_partition_at_0: of the same statistics: the rounding that both share then cancels.
    """
    return _point(moments, log2_partition_at_0, ESTIMATE_ROUNDING, LEAST_ESTIMATE)


def start_point(moments: TiltMoments, log2_shared: float) -> TiltPoint:
    """beta = 0, where p_0 is p_s on the common support by definition: KL and margin are 0.

    moments: taken at beta = 0. There KL = V beta^2 / 2 + T beta^3 / 3 + ... with V and T the
    variance and the third central moment of the tilt, which gives the shape of the curve.
    """
    velocity = ratio(1.0, math.sqrt(0.5 * moments.variance))
    acceleration = ratio(-4.0 / 3.0 * moments.skew, moments.variance * moments.variance)
    return TiltPoint(0.0, log2_shared, 0.0, 0.0, velocity, acceleration)


def ratio(dividend: float, divisor: float) -> float:
    """The quotient, NaN for a divisor of 0."""
    return dividend / divisor if divisor != 0.0 else math.nan


def _point(
    moments: TiltMoments, log2_shared: float, rounding: float, least_partition: float
) -> TiltPoint:
    """KL(p_beta || p_s) = beta psi' - psi with psi = log E_{p_s}[exp(beta d)]; KL' = beta psi''."""
    beta, log2_partition, mean, mean_square, variance, skew = moments
    psi = (log2_partition - log2_shared) / BITS_PER_NAT
    kl = max(beta * mean - psi, 0.0)
    if not (log2_partition > least_partition and math.isfinite(kl)):
        return UNKNOWN_POINT._replace(beta=beta)
    root = math.sqrt(kl)
    slope = ratio(beta * variance, 2.0 * root)
    bend = ratio(variance + beta * skew, 2.0 * root) - ratio(slope * slope, root)
    velocity = ratio(1.0, slope)
    margin = _margin(rounding, abs(psi), beta, math.sqrt(mean_square))
    acceleration = -bend * velocity * velocity * velocity
    return TiltPoint(beta, log2_partition, kl, margin, velocity, acceleration)


def _margin(rounding: float, psi: float, beta: float, spread: float) -> float:
    """To first order: relative errors of the weights, and how far the divergence passes them on.

    psi is its absolute value; spread is the root mean square of the tilt.
    """
    weight_error = rounding + EPSILON * (spread + psi)
    return 8.0 * weight_error * (1.0 + psi + beta * spread)
