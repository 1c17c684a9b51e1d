"""How far the uniforms of a step are from those that give a recorded token, in deviations."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from . import oracle
from .step_laws import ARITHMETIC, StepLaws

# V symbols. A deviation is a standard deviation of rounding.

LEAST_UNIFORM = 2.0**-60
"""In place of a uniform of 0, which is a multiple of 2**-53 otherwise, in logarithms."""

FARTHEST = 40.0
"""Deviations beyond which a float64 normal has no mass."""


@dataclass(frozen=True, slots=True)
class Side:
    """What lies below every edge between the cells of weights, or above, and how noise moves it."""

    log_mass: Tensor
    """(V + 1,), -inf for nothing."""
    variance: Tensor
    """(V + 1,) of log_mass, nats squared, where all of it moves a little."""
    raised_by: Tensor
    """(V + 1,) nats by which its heaviest symbol alone has to rise for log_mass to be its own."""
    heaviest_variance: Tensor
    """(V + 1,) of that symbol."""

    @classmethod
    def below(cls, log_weights: Tensor, deviations: Tensor) -> "Side":
        """log_weights: (V,). deviations: (V,) theirs, nats, independent."""
        squares = _after(-math.inf, 2.0 * (log_weights + deviations.log()), torch.logcumsumexp)
        log_mass = _after(-math.inf, log_weights, torch.logcumsumexp)
        top, place = log_weights.cummax(0)
        return cls(
            log_mass=log_mass,
            variance=_or_zero((squares - 2.0 * log_mass).exp()),
            raised_by=_or_zero(log_mass - torch.cat([top.new_full((1,), -math.inf), top])),
            heaviest_variance=_after(0.0, deviations[place].square()),
        )

    def flipped(self) -> "Side":
        """Of symbols that stood in the other order."""
        return Side(
            self.log_mass.flip(0),
            self.variance.flip(0),
            self.raised_by.flip(0),
            self.heaviest_variance.flip(0),
        )


@dataclass(frozen=True, slots=True)
class Cells:
    """The intervals of [0, 1) in which a uniform gives each symbol, and how far edges move.

    By a little noise an edge moves as its derivatives say. By noise of nats one symbol that weighed
    nothing may become the law, which derivatives do not see: then the logarithm of the odds of an
    edge moves, by all of a side or by its heaviest symbol alone. The nearer way counts.
    """

    edges: Tensor
    """(V + 1,) float64, ascending from 0 to 1."""
    deviations: Tensor
    """(V + 1,)."""
    below: Side
    above: Side

    @classmethod
    def of(cls, log_weights: Tensor, deviations: Tensor) -> "Cells":
        """log_weights: (V,), not all -inf. deviations: (V,) theirs in nats, independent."""
        weights = (log_weights - log_weights.logsumexp(-1)).exp()
        edges = _with_zero(weights.cumsum(0) / weights.sum())
        below = _with_zero((deviations * weights).square().cumsum(0))
        above = below[-1] - below
        square = (1.0 - edges).square() * below + edges.square() * above
        return cls(
            edges,
            square.clamp_min(0.0).sqrt() + ARITHMETIC,
            Side.below(log_weights, deviations),
            Side.below(log_weights.flip(0), deviations.flip(0)).flipped(),
        )

    def distances(self, uniform: float) -> Tensor:
        """(V,) how far a uniform is from each cell, in deviations; 0 inside."""
        beyond = self._beyond(uniform)
        return torch.maximum(beyond[:-1], -beyond[1:]).clamp_min(0.0)

    def index(self, uniform: float) -> int:
        """The symbol of a uniform's own cell."""
        above = int(torch.searchsorted(self.edges, uniform, right=True))
        return min(above, len(self.edges) - 1) - 1

    def expected_cost(self, uniform: float) -> float:
        """Mean squared deviations to the cell that normal noise of the edges gives a uniform."""
        beyond = self._beyond(uniform)[1:-1]
        below = (-beyond[beyond <= 0.0]).flip(0)
        return _mean_square(beyond[beyond > 0.0]) + _mean_square(below)

    def _beyond(self, uniform: float) -> Tensor:
        """(V + 1,) how far every edge is above a uniform, in deviations; negative below it."""
        beyond = (self.edges - uniform) / self.deviations
        safe = min(max(uniform, LEAST_UNIFORM), 1.0 - LEAST_UNIFORM)
        odds = self.below.log_mass - self.above.log_mass
        nats = (odds - math.log(safe) + math.log1p(-safe)).abs()
        # An edge comes down to the uniform where what is above it gains.
        down = _odds_deviations(nats, self.below, self.above)
        up = _odds_deviations(nats, self.above, self.below)
        by_odds = torch.where(beyond > 0.0, down, -up)
        return torch.where(by_odds.abs() < beyond.abs(), by_odds, beyond)


def _odds_deviations(nats: Tensor, loses: Side, gains: Side) -> Tensor:
    """(V + 1,) deviations by which the odds of edges move by so many nats (V + 1,)."""
    together = nats / (loses.variance + gains.variance).sqrt()
    alone = (nats + gains.raised_by) / (loses.variance + gains.heaviest_variance).sqrt()
    return torch.minimum(together, alone).nan_to_num(nan=math.inf)


@dataclass(frozen=True, slots=True)
class Draw:
    """The coupled draw of one step, under laws that rounding may have moved."""

    uniform: tuple[float, float, float]
    drafts: Cells
    residual: Cells | None
    """Of p* - p_s where it is positive; None where it is nowhere."""
    is_drafted: Tensor
    """(V,) bool: p_s allows the symbol."""
    lead: Tensor
    """(V,) log p* / p_s in deviations; a residual has what is positive."""
    margin: Tensor
    """(V,) the same less log u2: a draft is kept if it is positive."""

    @classmethod
    def of(cls, laws: StepLaws, uniform: tuple[float, float, float]) -> "Draw":
        ratio = oracle.log_ratio(laws.star, laws.safe)
        ratio = ratio.masked_fill(laws.star == -math.inf, -math.inf)
        kept = ratio - math.log(max(uniform[1], LEAST_UNIFORM))
        return cls(
            uniform=uniform,
            drafts=Cells.of(laws.safe, torch.full_like(laws.safe, laws.deviations.safe)),
            residual=_residual(laws),
            is_drafted=laws.safe > -math.inf,
            lead=ratio / laws.ratio_deviation,
            margin=kept / laws.ratio_deviation,
        )

    def costs(self, *, accepted: bool) -> Tensor:
        """(V,) squared deviations by which the laws must move to give each symbol, as the kept
        draft or as what replaces one; 0 if they need not move, inf if they cannot."""
        drafts = self.drafts.distances(self.uniform[0]).square()
        drafts = drafts.masked_fill(~self.is_drafted, math.inf)
        if accepted:
            return drafts + self.margin.clamp_max(0.0).square()
        if self.residual is None:
            return torch.full_like(drafts, math.inf)
        rejected = (drafts + self.margin.clamp_min(0.0).square()).min()
        replaced = self.residual.distances(self.uniform[2]).square()
        return rejected + replaced + self.lead.clamp_max(0.0).square()

    def expected_cost(self) -> float:
        """The mean cost of what honest rounding draws, if it has these deviations."""
        margin = self.margin[self.drafts.index(self.uniform[0])]
        cost = self.drafts.expected_cost(self.uniform[0]) + _mean_square(margin.abs()[None])
        if margin > 0.0 or self.residual is None:
            return cost
        return cost + self.residual.expected_cost(self.uniform[2])


def _residual(laws: StepLaws) -> Cells | None:
    lost = (laws.safe - laws.star).exp()  # of what p* gives
    lost = lost.masked_fill(laws.star == -math.inf, math.inf)
    log_weights = torch.where(lost < 1.0, laws.star + torch.log1p(-lost), -math.inf)
    if not (log_weights > -math.inf).any():
        return None
    own, by_safe = laws.star_deviation, laws.deviations.safe * lost
    relative = torch.where(lost < 1.0, torch.hypot(own, by_safe) / (1.0 - lost), 0.0)
    # A difference that noise is larger than grows like that noise, and not exponentially.
    nats = torch.minimum(relative, torch.log1p(relative) + torch.hypot(own, by_safe))
    return Cells.of(log_weights, nats)


def _mean_square(distances: Tensor) -> float:
    """E of the square of the last of these that a standard normal Z passes; nearest first."""
    distances = distances.cummax(0).values.clamp_max(FARTHEST)
    tails = _with_zero(torch.special.ndtr(-distances).flip(0)).flip(0)
    cost: float = (distances.square() * (tails[:-1] - tails[1:])).sum().item()
    return cost


def _with_zero(sums: Tensor) -> Tensor:
    return torch.cat([sums.new_zeros(1), sums])


def _after(
    first: float, values: Tensor, sums: Callable[[Tensor, int], Tensor] | None = None
) -> Tensor:
    """(V + 1,) running sums of values (V,), or the values themselves, behind `first`."""
    running = values if sums is None else sums(values, 0)
    return torch.cat([running.new_full((1,), first), running])


def _or_zero(values: Tensor) -> Tensor:
    """In place of NaN, where a side has nothing."""
    return values.nan_to_num(nan=0.0)
