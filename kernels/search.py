"""The search for the largest beta whose KL fits the budget, over all rows of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .bracket import Bracket, bracket, narrowed_by_estimates, predicted_beta
from .logit_pair import LogitPair
from .tilt import TiltSums, tilted_sums
from .tilt_points import (
    Array,
    Rows,
    TiltPoints,
    certified_points,
    estimated_points,
    settled_points,
    start_point,
    tilt_moments,
    unknown_point,
)

# A rows, P points a row.

MAX_PASSES = 16
"""Random rows within +-100 nats took at most 8; at the limit the feasible end is returned."""

NUM_GUIDED_PASSES = 2
"""Passes that interpolate between estimates; should those mislead, later ones do without them."""

TRIAL_OFFSETS = (-4.0 / 3.0, -2.0 / 3.0, 0.0, 2.0 / 3.0)
"""Where the four points of a pass lie, in error estimates from the predicted root."""

SHARPNESS = 1000.0
"""One point is tried in place of four if the estimated error in KL is below this many tolerances:
the estimate, quintic minus cubic, is the cubic's error and lies far above the quintic's own."""

LEAST_STEP = 1e-3
"""Trial points keep this fraction of the bracket from its ends."""


@dataclass(frozen=True, slots=True)
class KlTarget:
    """What each row may spend on the common support, and how near the search must come to it.

    (A,) each.
    """

    log2_shared: Array
    """log2 of the safe weight on the common support."""
    allowance: Array
    """Nats; KL plus its margin must not exceed it."""
    tolerance: Array
    """Nats; the search ends within it of the allowance."""
    is_untilted: NDArray[np.bool_]
    """The models agree wherever the safe one has weight."""
    rounding: Array
    """`LogitPair.rounding`."""
    tilt_range: Array
    """Bits, `LogitPair.tilt_range`."""

    def take(self, rows: Rows) -> KlTarget:
        return KlTarget(
            self.log2_shared[rows],
            self.allowance[rows],
            self.tolerance[rows],
            self.is_untilted[rows],
            self.rounding[rows],
            self.tilt_range[rows],
        )


@dataclass(frozen=True, slots=True)
class _Trials:
    """Where to measure next; (A,) each."""

    aim: Array
    """Nats; the KL sought."""
    beta: Array
    error: Array
    is_sharp: NDArray[np.bool_]
    """One point is likely to settle the row."""


@np.errstate(all="ignore")
def largest_feasible(
    pair: LogitPair, rows: Tensor, first: TiltSums, target: KlTarget
) -> TiltPoints:
    """The largest beta found feasible in each row.

    rows: (A,) int64, rows of the pair that have a common support. first: their `statistics`.
    Returns: (A, 1) points measured in float64: feasible means feasible.
    """
    moments = tilt_moments(first)
    start = start_point(moments, target.log2_shared)
    interval = Bracket(start, unknown_point(start))
    estimates = estimated_points(moments)
    is_stalled = np.zeros(len(rows), dtype=np.bool_)
    for num_passes in range(MAX_PASSES):
        is_open = _is_open(interval, target)
        if not is_open.any():
            break
        still = _members(is_open)
        before, part = interval.take(still), target.take(still)
        is_guided = num_passes < NUM_GUIDED_PASSES
        known = estimates.take(still) if is_guided else TiltPoints(estimates.values[:, still, :0])
        trials = _trials(before, known, part, is_stalled[still])
        after = _narrowed(pair, _chosen(rows, still), before, part, trials)
        is_stalled[still] = (after.width > 0.5 * before.width) & (not is_guided)
        interval.put(still, after)
    return interval.lower


def _members(mask: NDArray[np.bool_]) -> Rows:
    # Most often all rows: a slice of them is a view.
    return slice(None) if mask.all() else mask.nonzero()[0]


def _chosen(rows: Tensor, members: Rows) -> Tensor:
    if isinstance(members, slice):
        return rows[members]
    return rows[torch.from_numpy(members).to(rows.device)]


def _is_open(interval: Bracket, target: KlTarget) -> NDArray[np.bool_]:
    lower = interval.lower
    slack = np.maximum(target.tolerance, 4.0 * lower.margin[:, 0])
    can_rise = (lower.beta[:, 0] < 1.0) & (interval.width > 0.0)
    return can_rise & (lower.kl[:, 0] < target.allowance - slack)


def _trials(
    interval: Bracket, estimates: TiltPoints, target: KlTarget, is_stalled: NDArray[np.bool_]
) -> _Trials:
    slack = np.maximum(0.5 * target.tolerance, 2.0 * interval.lower.margin[:, 0])
    aim = target.allowance - slack
    guide = narrowed_by_estimates(interval, estimates, aim)
    low, width = guide.lower.beta[:, 0], guide.width
    beta, error = predicted_beta(guide, aim)
    rise = (np.sqrt(guide.upper.kl) - np.sqrt(guide.lower.kl))[:, 0] / width
    error_nats = 2.0 * np.sqrt(aim) * rise * error
    beta = np.minimum(np.where(is_stalled, low + 0.5 * width, beta), 1.0)
    error = np.where(is_stalled, 0.3 * width, error)
    is_sharp = (error_nats < SHARPNESS * target.tolerance) & ~is_stalled
    return _Trials(aim, beta, error, is_sharp | (beta == 1.0))


def _narrowed(
    pair: LogitPair, rows: Tensor, interval: Bracket, target: KlTarget, trials: _Trials
) -> Bracket:
    """The bracket after one pass: one point for the sharp rows and four for the others."""
    narrowed = Bracket(*(TiltPoints(end.values.copy()) for end in (interval.lower, interval.upper)))
    for group, offsets in ((trials.is_sharp, (0.0,)), (~trials.is_sharp, TRIAL_OFFSETS)):
        if not group.any():
            continue
        members = _members(group)
        before, part = interval.take(members), target.take(members)
        beta = _trial_betas(before, trials.beta[members], trials.error[members], offsets)
        moments = tilt_moments(tilted_sums(pair, _chosen(rows, members), beta))
        points = certified_points(part.rounding, moments, part.log2_shared, part.is_untilted)
        settled = settled_points(points, moments, part.tilt_range, trials.aim[members])
        known = [point.values for point in (before.lower, points, settled, before.upper)]
        found = TiltPoints(np.concatenate(known, axis=2))
        narrowed.put(members, bracket(found, part.allowance))
    return narrowed


def _trial_betas(interval: Bracket, beta: Array, error: Array, offsets: tuple[float, ...]) -> Array:
    if len(offsets) == 1:
        return beta[:, None]
    low, high = interval.lower.beta, np.minimum(interval.upper.beta, 1.0)
    gap = LEAST_STEP * (high - low)
    spread = np.array(offsets) * error[:, None]
    return np.clip(beta[:, None] + spread, low + gap, high - gap)
