"""The search for the largest beta whose KL fits the budget: passes for all rows of a batch, and
between them a few numbers a row."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from .bracket import Bracket, narrowed, narrowed_by_estimates, predicted_beta
from .kl_target import FeasiblePoint, KlTarget
from .logit_pair import LogitPair
from .tilt import ESTIMATED_BETAS, TiltSums, tilted_sums
from .tilt_points import (
    UNKNOWN_POINT,
    certified_point,
    estimated_point,
    settled_point,
    start_point,
    tilt_moments,
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


class _RowSearch:
    """What is known of one row."""

    def __init__(self, first: Sequence[Sequence[float]], target: KlTarget) -> None:
        """first: (number of ESTIMATED_BETAS, 4), the row's `statistics`."""
        at_0, *others = map(tilt_moments, ESTIMATED_BETAS, first)
        self._target = target
        self._bracket = Bracket(start_point(at_0, target.log2_shared), UNKNOWN_POINT)
        self._estimates = [estimated_point(x, at_0.log2_partition) for x in others]
        # The models agree wherever the safe one has weight.
        self._is_untilted = first[0][2] == 0.0
        self._num_passes = 0
        self._is_stalled = False
        self._aim = 0.0

    @property
    def feasible(self) -> FeasiblePoint:
        return FeasiblePoint(*self._bracket.lower[:4])

    @property
    def is_open(self) -> bool:
        lower, target = self._bracket.lower, self._target
        slack = max(target.tolerance, 4.0 * lower.margin)
        can_rise = lower.beta < 1.0 and self._bracket.width > 0.0
        return can_rise and lower.kl < target.allowance - slack

    def trials(self) -> tuple[float, ...]:
        """Where to measure next: one beta that is likely to settle the row, or four."""
        target, bracket = self._target, self._bracket
        slack = max(0.5 * target.tolerance, 2.0 * bracket.lower.margin)
        self._aim = target.allowance - slack
        if self._is_stalled:
            return self._spread(bracket.lower.beta + 0.5 * bracket.width, 0.3 * bracket.width)
        estimates = self._estimates if self._num_passes < NUM_GUIDED_PASSES else ()
        guide = narrowed_by_estimates(bracket, estimates, self._aim)
        beta, error = predicted_beta(guide, self._aim)
        rise = (math.sqrt(guide.upper.kl) - math.sqrt(guide.lower.kl)) / guide.width
        error_nats = 2.0 * math.sqrt(self._aim) * rise * error
        if error_nats < SHARPNESS * target.tolerance:
            return (min(beta, 1.0),)
        return self._spread(beta, error)

    def _spread(self, beta: float, error: float) -> tuple[float, ...]:
        if beta >= 1.0:
            return (1.0,)
        low, high = self._bracket.lower.beta, min(self._bracket.upper.beta, 1.0)
        gap = LEAST_STEP * (high - low)
        around = (beta + offset * error for offset in TRIAL_OFFSETS)
        return tuple(min(max(x, low + gap), high - gap) for x in around)

    def narrow(self, trials: Sequence[float], sums: Sequence[Sequence[float]]) -> None:
        """sums: (P, 4), measured at the trials."""
        target, width = self._target, self._bracket.width
        points = []
        for moments in map(tilt_moments, trials, sums):
            args = (target.rounding, moments, target.log2_shared)
            point = certified_point(*args, is_untilted=self._is_untilted)
            points.append(point)
            settled = settled_point(point, moments, target.tilt_range, self._aim)
            if settled is not None:
                points.append(settled)
        self._bracket = narrowed(self._bracket, points, target.allowance)
        is_guided = self._num_passes < NUM_GUIDED_PASSES
        self._is_stalled = not is_guided and self._bracket.width > 0.5 * width
        self._num_passes += 1


def largest_feasible(
    pair: LogitPair, rows: Tensor, first: TiltSums, targets: Sequence[KlTarget]
) -> list[FeasiblePoint]:
    """The largest beta found feasible in each row.

    rows: (A,) int64, rows of the pair that have a common support. first: their `statistics`.
    targets: A of them.
    """
    searches = [_RowSearch(*x) for x in zip(first.sums.tolist(), targets, strict=True)]
    for _ in range(MAX_PASSES):
        trials = {place: x.trials() for place, x in enumerate(searches) if x.is_open}
        if not trials:
            break
        for count in (1, len(TRIAL_OFFSETS)):
            places = [place for place, betas in trials.items() if len(betas) == count]
            if not places:
                continue
            chosen = rows if len(places) == len(rows) else rows[places]
            sums = tilted_sums(pair, chosen, np.array([trials[place] for place in places])).sums
            for place, its_sums in zip(places, sums.tolist(), strict=True):
                searches[place].narrow(trials[place], its_sums)
    return [search.feasible for search in searches]
