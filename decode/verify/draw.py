"""The least rounding of a step's distributions with which its uniforms give a token."""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .rounding import ARITHMETIC, COMMON, NUM_DEVIATIONS

# V symbols. Distributions are (V,) float64 log-probabilities, tolerances are in nats.

LEAST_LOG = -745.0
"""Log of a uniform of 0, below that of every other float64."""

MEAN_SIZE = math.sqrt(2.0 / math.pi)
"""Reach of a normal error, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The intervals of [0, 1) in which a uniform gives each symbol, and how far edges move.

    An edge between two symbols is where the odds of what lies below it, to what lies above, are
    those of the uniform. Rounding moves the logarithm of these odds.
    """

    log_odds: Tensor
    """(V + 1,) of the edges, ascending from -inf to inf."""
    reach: Tensor
    """(V + 1,) nats by which rounding may move them."""
    usual: float
    """Nats by which it usually does, as a standard deviation."""

    @classmethod
    def of(cls, weights: Tensor, tolerance: Tensor) -> "Cells":
        """weights: (V,) not all 0. tolerance: (V,) of their logarithms, independent."""
        below, below_reach = _side(weights, tolerance)
        above, above_reach = (x.flip(0) for x in _side(weights.flip(0), tolerance.flip(0)))
        common = COMMON * (weights * tolerance).sum() / weights.sum()
        reach = below_reach.hypot(above_reach).hypot(common)
        return cls(below.log() - above.log(), reach, common.item() / NUM_DEVIATIONS)

    def chance(self) -> float:
        """The chance that rounding gives a uniform's draw another symbol."""
        # An edge at F moves by F (1 - F) times its log odds. A cell loses what its edges pass over,
        # inwards every other time, and no more than it holds.
        below = self.log_odds.sigmoid()
        moved = below * (1.0 - below) * self.usual
        lost = 0.5 * MEAN_SIZE * (moved[:-1] + moved[1:])
        return torch.minimum(below[1:] - below[:-1], lost).sum().item()

    def needed(self, uniform: float) -> Tensor:
        """(V,) reaches by which edges must move until each symbol's cell holds the uniform."""
        target = math.log(uniform / (1.0 - uniform)) if uniform > 0.0 else LEAST_LOG
        # Near 0 and 1 the sums' rounding is more nats than in the middle.
        slack = ARITHMETIC / max(uniform * (1.0 - uniform), ARITHMETIC)
        below = _times(self.log_odds[:-1] - target, self.reach[:-1], slack)
        above = _times(target - self.log_odds[1:], self.reach[1:], slack)
        return torch.maximum(below, above)


def _times(distance: Tensor, reach: Tensor, slack: float = ARITHMETIC) -> Tensor:
    """The distance in nats as a number of reaches, 0 up to the slack of exact logits."""
    return torch.where(distance <= slack, 0.0, (distance - slack) / reach)


def _side(weights: Tensor, tolerance: Tensor) -> tuple[Tensor, Tensor]:
    """(V + 1,) what lies below each edge, and the nats by which rounding may move its logarithm.

    Errors of symbols are independent, so those of a sum add up by their squares; and noise raises a
    sum, on average by half its variance, as one symbol of many may gain where it is large.
    """
    below = _after_nothing(weights)
    noise = _after_nothing((weights * tolerance).square()).sqrt() / below
    raised = _after_nothing(weights * tolerance.square()) / below / (2.0 * NUM_DEVIATIONS**2)
    return below, (noise + raised).nan_to_num(nan=0.0)


def _after_nothing(values: Tensor) -> Tensor:
    return torch.cat([values.new_zeros(1), values.cumsum(0)])


@dataclass(frozen=True)  # no slots: what follows from the distributions is computed once
class Draw:
    """The coupled draw of one step: a draft of p_s, kept or replaced by the excess of p*."""

    uniform: tuple[float, float, float]
    safe: Tensor
    star: Tensor
    safe_tolerance: float
    star_tolerance: Tensor
    """(V,)."""
    ratio_tolerance: Tensor
    """(V,) of log p* / p_s."""

    def needed(self, *, accepted: bool) -> Tensor:
        """(V,) tolerances by which the distributions must move for the uniforms to give each
        token: 0 for what they give exactly, inf for what no rounding makes them give.

        accepted: as the draft that is kept; else as what replaces it.
        """
        # 1. The draft: its cell of p_s holds the first uniform.
        drafts = self._drafts.needed(self.uniform[0])
        drafts = drafts.masked_fill(self.safe == -math.inf, math.inf)
        # 2. It stays where u2 < p* / p_s.
        lead = self._lead
        threshold = math.log(self.uniform[1]) if self.uniform[1] > 0.0 else LEAST_LOG
        if accepted:
            return torch.maximum(drafts, _times(threshold - lead, self.ratio_tolerance))
        # 3. If some draft may fall, the third uniform draws from the excess of p*.
        falls = torch.maximum(drafts, _times(lead - threshold, self.ratio_tolerance)).min()
        excess = self._excess
        if excess is None:
            return torch.full_like(drafts, math.inf)
        is_above = _times(-lead, self.ratio_tolerance)
        return torch.maximum(excess.needed(self.uniform[2]), is_above).maximum(falls)

    def chance(self) -> float:
        """The chance that rounding gives another token, over all uniforms."""
        kept = self.safe.exp() * self._lead.clamp(max=0.0).exp()
        is_open = self._lead <= self.ratio_tolerance  # else no rounding lets the draft fall
        usual = COMMON / NUM_DEVIATIONS * self.ratio_tolerance
        turned = torch.where(is_open & (kept > 0.0), kept * usual.clamp(max=1.0), 0.0)
        chance = self._drafts.chance() + MEAN_SIZE * turned.sum().item()
        if self._excess is not None:
            chance += max(0.0, 1.0 - kept.sum().item()) * self._excess.chance()
        return min(1.0, chance)

    @cached_property
    def _drafts(self) -> Cells:
        return Cells.of(self.safe.exp(), torch.full_like(self.safe, self.safe_tolerance))

    @cached_property
    def _lead(self) -> Tensor:
        """(V,) log p* / p_s."""
        return torch.where(self.star == -math.inf, -math.inf, self.star - self.safe)

    @cached_property
    def _excess(self) -> Cells | None:
        """The cells of p* - p_s where it is positive; None where it is nowhere."""
        kept = -torch.expm1(-self._lead)  # the part of p* that is above p_s
        weights = torch.where(kept > 0.0, self.star.exp() * kept, 0.0)
        if not weights.sum() > 0.0:
            return None
        # A difference that rounding exceeds grows like the rounding, and not by its quotient.
        relative = self.ratio_tolerance / kept.clamp_min(ARITHMETIC)
        relative = torch.minimum(relative, torch.log1p(relative) + self.star_tolerance)
        tolerance = torch.hypot(self.star_tolerance, relative)
        return Cells.of(weights, torch.where(weights > 0.0, tolerance, 0.0))
