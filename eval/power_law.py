"""Loss as a power law of size, and what it says of a larger model, with an interval.

n losses of models of sizes x: L(x) = E + A x^-a, E what no size takes away. All in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .statistics import student_quantile

_NUM_PARAMETERS = 3
_EXPONENTS = (0.01, 2.0)  # published ones of language models lie between 0.05 and 0.5
_GRID = 600

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """E + A x^-a."""

    irreducible: float
    """E, in nats a token."""
    scale: float
    """A, for sizes in the unit that they were given in."""
    exponent: float
    """a"""

    def loss(self, size: float) -> float:
        """At a size."""
        return self.irreducible + self.scale * size**-self.exponent


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """The loss of a model that was not trained."""

    law: PowerLaw
    """The one nearest to the losses."""
    loss: float
    low: float
    high: float
    """Ends of the interval."""
    confidence: float
    deviation: float
    """Of a loss from the law, as estimated with n - 3 degrees of freedom."""


def predict_loss(
    sizes: Sequence[float], losses: Sequence[float], target: float, *, confidence: float = 0.9
) -> Prediction:
    """The loss at the size `target`, by the law of least squares.

    sizes: positive, at least 3 different ones, none above the target; losses: one each, at least
    4, in nats a token. No law has an E below 0.
    The interval holds every loss at the target that some law has which is not much further from
    the losses (profile likelihood): their squared deviations exceed the least by no more than
    t^2 / (n - 3) of it, with Student's t of n - 3 degrees of freedom. It assumes deviations of one
    normal distribution, and that the law goes on to the target.
    Raises: ValueError if these are too few, not finite, or do not fall with size.
    Source: Hoffmann et al. 2022, "Training compute-optimal large language models", for the form;
    Bates and Watts 1988, "Nonlinear regression analysis", 6.1.2, for the interval.
    """
    x, y = np.asarray(sizes, np.float64), np.asarray(losses, np.float64)
    _check(x, y, target, confidence)
    logs = np.log(x / target)
    # With E and A linear, one search over a is left; finer where it matters.
    exponents = np.geomspace(*_EXPONENTS, _GRID)
    best = _laws(exponents, logs, y).best % _GRID
    first, last = exponents[max(0, best - 1)], exponents[min(_GRID - 1, best + 1)]
    laws = _laws(np.append(exponents, np.geomspace(first, last, _GRID)), logs, y)
    best = laws.best
    if not (np.log(x) - np.log(x).mean()) @ y < 0:
        raise ValueError("the losses do not fall with size: no power law predicts a larger model")
    freedom = len(y) - _NUM_PARAMETERS
    least = laws.squares[best]
    spare = least * (1 + student_quantile(confidence, freedom) ** 2 / freedom) - laws.squares
    reach = np.sqrt(np.maximum(spare, 0.0) * laws.variances)
    lows = np.maximum(laws.predicted - reach, laws.lowest)
    highs = np.minimum(laws.predicted + reach, laws.highest)
    is_near = (spare >= 0) & (lows <= highs)
    exponent, scale = float(laws.exponents[best]), float(laws.slopes[best])
    predicted = float(laws.predicted[best])
    return Prediction(
        law=PowerLaw(max(0.0, predicted - scale), scale * target**exponent, exponent),
        loss=predicted,
        low=float(lows[is_near].min()),
        high=float(highs[is_near].max()),
        confidence=confidence,
        deviation=math.sqrt(least / freedom),
    )


def _check(x: Array, y: Array, target: float, confidence: float) -> None:
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"sizes and losses must be as many, got {x.shape} and {y.shape}")
    if not (np.isfinite([*x, *y]).all() and 0 < target < math.inf and (x > 0).all()):
        raise ValueError("sizes must be positive, and they and the losses finite")
    if x.max() > target:
        raise ValueError(f"target must be no smaller than every size, got {target} and {x.max()}")
    if len(np.unique(x)) < _NUM_PARAMETERS or len(y) <= _NUM_PARAMETERS:
        raise ValueError(
            f"a power law and its interval need losses of at least {_NUM_PARAMETERS} sizes and at "
            f"least {_NUM_PARAMETERS + 1} of them, got {len(y)} of {len(np.unique(x))}"
        )
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")


@dataclass(frozen=True, slots=True)
class _Laws:
    """The best law of each exponent with any E, then the best with E = 0.

    All of shape (2 * num_exponents,).
    """

    exponents: Array
    squares: Array
    """Sum of its squared deviations."""
    predicted: Array
    """Its loss at the target."""
    slopes: Array
    """A, in units of the target's size."""
    variances: Array
    """Of `predicted`, for deviations of variance 1."""
    lowest: Array
    highest: Array
    """Losses at the target between which the best laws have neither E nor A below 0."""

    @property
    def best(self) -> int:
        """Of those that have neither below 0, the one nearest to the losses."""
        is_law = (self.lowest <= self.predicted) & (self.predicted <= self.highest)
        return int(np.where(is_law, self.squares, np.inf).argmin())


def _laws(exponents: Array, logs: Array, losses: Array) -> _Laws:
    """Linear regressions on x^-a with x in units of the target, whose loss is E + A.

    With E = 0 the one number A is left.
    """
    powers = np.expm1(-exponents[:, None] * logs)  # of x^-a - 1; a small a loses no digits
    means, mean = powers.mean(1), losses.mean()
    centred = powers - means[:, None]
    spread = (centred**2).sum(1)
    slopes = centred @ (losses - mean) / spread
    predicted = mean - slopes * means
    residuals = losses - mean - slopes[:, None] * centred
    squares = (residuals**2).sum(1)
    total = (powers**2).sum(1)
    along, sums = powers @ losses, powers.sum(1)
    whole = ((powers + 1) ** 2).sum(1)
    without = (powers + 1) @ losses / whole
    off = losses - without[:, None] * (powers + 1)
    return _Laws(
        exponents=np.append(exponents, exponents),
        squares=np.append(squares, (off**2).sum(1)),
        predicted=np.append(predicted, without),
        slopes=np.append(slopes, without),
        variances=np.append(1 / len(losses) + means**2 / spread, 1 / whole),
        lowest=np.append(along / (total + sums), np.zeros_like(without)),
        highest=np.append(along / sums, np.full_like(without, np.inf)),
    )
