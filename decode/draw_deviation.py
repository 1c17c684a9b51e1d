"""How far the uniforms of a step are from those that give a recorded token, in deviations."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from . import oracle
from .rounding import ARITHMETIC, tail_square
from .step_laws import StepLaws

# V symbols. A deviation is a standard deviation of rounding.

LEAST_UNIFORM = 2.0**-60
"""In place of a uniform of 0, which is a multiple of 2**-53 otherwise, in logarithms."""


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

    def crossings(self, uniform: float) -> list[float]:
        """Deviations from a uniform to both ends of its own cell."""
        index = self.index(uniform)
        beyond = ((uniform - self.edges) / self.deviations).abs()
        return beyond[index : index + 2].tolist()


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
    """(V,) log p* / p_s in deviations."""
    threshold: float
    """log u2 in deviations: a draft is kept if its lead is above."""

    @classmethod
    def of(cls, laws: StepLaws, uniform: tuple[float, float, float]) -> "Draw":
        safe = laws.safe.exp()
        ratio = oracle.log_ratio(laws.star, laws.safe)
        ratio = ratio.masked_fill(laws.star == -math.inf, -math.inf)
        return cls(
            uniform=uniform,
            drafts=Cells.of(safe, laws.safe_deviation * safe),
            residual=_residual(laws),
            is_drafted=laws.safe > -math.inf,
            lead=ratio / laws.ratio_deviation,
            threshold=math.log(max(uniform[1], LEAST_UNIFORM)) / laws.ratio_deviation,
        )

    def costs(self, *, accepted: bool) -> Tensor:
        """(V,) squared deviations by which the laws must move to give each symbol, as the kept
        draft or as what replaces one; 0 if they need not move, inf if they cannot."""
        drafts = self.drafts.distances(self.uniform[0]).square()
        drafts = drafts.masked_fill(~self.is_drafted, math.inf)
        margin = self.lead - self.threshold
        if accepted:
            return drafts + margin.clamp_max(0.0).square()
        if self.residual is None:
            return torch.full_like(drafts, math.inf)
        rejected = (drafts + margin.clamp_min(0.0).square()).min()
        replaced = self.residual.distances(self.uniform[2]).square()
        return rejected + replaced + self.lead.clamp_max(0.0).square()

    def expected_cost(self) -> float:
        """At most the mean cost of what honest rounding draws.

        Normal noise that passes an edge at distance d costs at most its own square.
        """
        edges = self.drafts.crossings(self.uniform[0])
        margin = (self.lead - self.threshold)[self.drafts.index(self.uniform[0])].item()
        if margin <= 0.0 and self.residual is not None:
            edges += self.residual.crossings(self.uniform[2])
        return sum(map(tail_square, [*edges, abs(margin)]))


def _residual(laws: StepLaws) -> Cells | None:
    star, safe = laws.star.exp(), laws.safe.exp()
    weights = (star - safe).clamp_min(0.0)
    if not weights.sum() > 0.0:
        return None
    deviations = torch.hypot(laws.star_deviation * star, laws.safe_deviation * safe)
    return Cells.of(weights, torch.where(weights > 0.0, deviations, 0.0))


def _with_zero(sums: Tensor) -> Tensor:
    return torch.cat([sums.new_zeros(1), sums])
