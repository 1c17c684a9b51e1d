"""How many nats the next token may spend: adaptive, global and fixed allowances of one request."""

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

from ...kernels.spend import BUDGET_CAP, SPEND_QUANTUM

Schedule = Literal["adaptive", "global", "fixed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """The information budget of one generation.

    Invariant: if every spend is a multiple of SPEND_QUANTUM and at most `allowance(step, spent)`,
    the float64 sum of the spends never exceeds `bound`, exactly and in any order of summation:
    allowances are rounded down to the quantum, so spends and their sums stay exact.
    """

    per_step: float
    """k, nats a step; infinite for rules without a budget."""
    total: float
    """K, nats for the whole sequence."""
    horizon: int
    """Largest number of steps the total is spread over."""
    debt: float = 0.0
    """Prefix debt in nats; infinite when the safe model gives a prompt token no probability."""
    schedule: Schedule = "adaptive"

    @property
    def bound(self) -> float:
        """Nats that the spends can never exceed: max(0, K - debt), or K for fixed allowances."""
        if self.schedule == "fixed":
            return self.total
        return max(0.0, self.total - self.debt)

    @property
    def is_safe_only(self) -> bool:
        """No step can ever spend anything: the generation is the safe model's own."""
        return self.bound <= 0.0

    def allowance(self, step: int, spent: float) -> float:
        """k_t in nats for 0-based `step` after `spent` nats: a multiple of SPEND_QUANTUM, >= 0.

        Source: paper, proposition "Global safety of adaptive banking"; corollary "Constant per-step
        cap" for fixed allowances.
        """
        if self.schedule == "fixed":
            return _round_down(self.per_step)
        accrued = self.total
        if self.schedule == "adaptive":
            accrued = min(self.per_step * (step + 1), self.total)
        return max(0.0, _round_down(accrued - self.debt) - spent)


def checked_nats(name: str, nats: Any) -> float:
    """A k or a K that a caller gives, as a float.

    Raises ValueError unless it is a real number, numpy's too, in [0, BUDGET_CAP]: sums of larger
    spends would not be exact, and no step could spend them.
    """
    if not isinstance(nats, Real):
        raise ValueError(f"{name} must be a number of nats, got {nats!r}")
    value = float(nats)
    if not 0.0 <= value <= BUDGET_CAP:
        raise ValueError(f"{name} must be in [0, {BUDGET_CAP:.0f}] nats, got {value}")
    return value


def _round_down(nats: float) -> float:
    capped = max(0.0, min(nats, BUDGET_CAP))
    return math.floor(capped / SPEND_QUANTUM) * SPEND_QUANTUM
