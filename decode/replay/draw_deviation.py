"""How far the uniforms of a step are from those that give a recorded token, in deviations."""

import math
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
class Cells:
    """The intervals of [0, 1) in which a uniform gives each symbol, and how far edges move."""

    edges: Tensor
    """(V + 1,) float64, ascending from 0 to 1."""
    deviations: Tensor
    """(V + 1,)."""

    @classmethod
    def of(cls, weights: Tensor, deviations: Tensor) -> "Cells":
        """weights: (V,) at least 0, with a positive sum. deviations: (V,) theirs, independent."""
        total = weights.sum()
        edges = _with_zero(weights.cumsum(0) / total)
        below = _with_zero((deviations / total).square().cumsum(0))
        above = below[-1] - below
        square = (1.0 - edges).square() * below + edges.square() * above
        return cls(edges, square.clamp_min(0.0).sqrt() + ARITHMETIC)

    def distances(self, uniform: float) -> Tensor:
        """(V,) how far a uniform is from each cell, in deviations; 0 inside."""
        beyond = (uniform - self.edges) / self.deviations
        return torch.maximum(-beyond[:-1], beyond[1:]).clamp_min(0.0)

    def index(self, uniform: float) -> int:
        """The symbol of a uniform's own cell."""
        above = int(torch.searchsorted(self.edges, uniform, right=True))
        return min(above, len(self.edges) - 1) - 1

    def expected_cost(self, uniform: float) -> float:
        """Mean squared deviations to the cell that normal noise of the edges gives a uniform."""
        beyond = ((self.edges - uniform) / self.deviations)[1:-1]
        below = (-beyond[beyond <= 0.0]).flip(0)
        return _mean_square(beyond[beyond > 0.0]) + _mean_square(below)


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
        safe = laws.safe.exp()
        ratio = oracle.log_ratio(laws.star, laws.safe)
        ratio = ratio.masked_fill(laws.star == -math.inf, -math.inf)
        kept = ratio - math.log(max(uniform[1], LEAST_UNIFORM))
        return cls(
            uniform=uniform,
            drafts=Cells.of(safe, laws.deviations.safe * safe),
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
    star, safe = laws.star.exp(), laws.safe.exp()
    weights = (star - safe).clamp_min(0.0)
    if not weights.sum() > 0.0:
        return None
    deviations = torch.hypot(laws.star_deviation * star, laws.deviations.safe * safe)
    return Cells.of(weights, torch.where(weights > 0.0, deviations, 0.0))


def _mean_square(distances: Tensor) -> float:
    """E of the square of the last of these that a standard normal Z passes; nearest first."""
    distances = distances.cummax(0).values.clamp_max(FARTHEST)
    tails = _with_zero(torch.special.ndtr(-distances).flip(0)).flip(0)
    cost: float = (distances.square() * (tails[:-1] - tails[1:])).sum().item()
    return cost


def _with_zero(sums: Tensor) -> Tensor:
    return torch.cat([sums.new_zeros(1), sums])
