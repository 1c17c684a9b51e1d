"""Pathwise budgets: Anchored Decoding that charges the tokens that were drawn."""

from dataclasses import dataclass

from ..settings import Charge, Divergence
from .anchored import Indebted
from .budget import Budget
from .rule import OpenRule, Symbols


@dataclass(frozen=True, slots=True)
class Pathwise(Indebted):
    """p* = min(c p_r, e^b p_s), with the b nats that a bucket holds; certified for every passage.

    1. The bucket is full, with `bank` nats less the prompt's debt, and gets k at each step.
    2. No token of p* is more than e^b times as likely as under p_s; where b <= 0, p* = p_s.
    3. The token y that is drawn costs log p*(y) / p_s(y), at most b. A token that p* likes less
       than p_s gives nats back, up to a full bucket.

    So along any w tokens the costs sum to at most bank + w k: no passage of w tokens, wherever it
    begins in a text of any length, is more than e^(bank + w k) times as likely as under p_s, and no
    text more than e^(bank + k * horizon - debt) times. `Pathwise(k=0, bank=K)` is a budget of K
    nats for a whole text.
    Source: docs/guarantee.md, "Pathwise budgets"; p* is that of the paper's proposition on optimal
    Renyi clipping.
    """

    k: float = 1.0
    """Nats per step, for which a call may name others."""
    bank: float = 20.0
    """Nats of a full bucket: a memorized token takes about four."""

    name = "pathwise"
    is_projection = True

    @property
    def divergence(self) -> Divergence:
        return "max"

    @property
    def charge(self) -> Charge:
        return "drawn"

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        return Budget.of(horizon=horizon, k=self.k if k is None else k, bank=self.bank)

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self._project)
