"""Anchored Decoding: the risky model inside an information budget of the safe one."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...fields import check_choice, check_fields, checked_nats, checked_order
from ...kernels.project import project
from ...kernels.projection import Projection
from ..settings import BudgetOptions, BudgetSize, Divergence
from .budget import Budget, prefix_debt
from .rule import NextToken, OpenRule, Rule, StepInputs, Symbols


@dataclass(frozen=True, slots=True)
class Budgeted(BudgetOptions, BudgetSize, Rule):
    """A rule whose spends stay within a budget, and bound the divergence from the safe model.

    It has either k, in whose place a call may give another, or K.
    """

    divergences: ClassVar[tuple[Divergence, ...]] = ("kl",)
    """The divergences that the rule can spend: a subclass with others names them."""
    is_certified = True

    def __post_init__(self) -> None:
        check_fields(self)
        if (self.k is None) == (self.K is None):
            raise ValueError(f"give either k or K, got k={self.k} and K={self.K}")
        checked_nats("k" if self.K is None else "K", self.k if self.K is None else self.K)
        check_choice("divergence", self.divergence, self.divergences)
        checked_order(self.divergence, self.order)
        if self.debt_window < 1:
            raise ValueError(f"debt_window must be >= 1, got {self.debt_window}")
        self.budget_for(horizon=1, k=None)  # ValueError for a bank that no budget has

    def settings(self) -> dict[str, Any]:
        """As of `Rule`, but for what is None: older ledgers have no bank and no order."""
        settings = Rule.settings(self)
        absent = {name for name in ("bank", "order") if settings[name] is None}
        return {name: value for name, value in settings.items() if name not in absent}

    @property
    def charges_debt(self) -> bool:
        return self.debt != "none"

    def debt_for(self, ratios: Tensor) -> float:
        return prefix_debt(ratios, mode=self.debt, window=self.debt_window)

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        if k is not None and self.K is not None:
            raise ValueError(
                f"the rule has K={self.K:g} for a whole text, a call cannot give k={k:g} as well: "
                "make the rule with k, or leave k out"
            )
        if self.K is not None:
            per_step, total = self.K / horizon, self.K
        else:
            assert self.k is not None  # as one of both is given
            per_step = self.k if k is None else k
            total = checked_nats(f"K = k * horizon = {per_step} * {horizon}", per_step * horizon)
        return Budget(
            per_step=per_step,
            total=total,
            horizon=horizon,
            schedule=self.budget,
            bank=self.bank,
        )

    def _project(self, inputs: StepInputs) -> Projection:
        risky, safe = inputs.warped("risky"), inputs.warped("safe")
        # Without an allowance p* is p_s whatever the risky model says, NaN too: while a text is
        # decoded that model does not run there, so nobody would know. Most steps have no such row,
        # but to ask a device would be to wait for it.
        rests = inputs.budget <= 0.0
        if rests.device.type != "cpu" or bool(rests.any()):
            risky = torch.where(rests[:, None], safe, risky)
        named: dict[str, Any] = {"divergence": self.divergence, "order": self.order}
        return project(risky, safe, inputs.budget, inputs.uniform, **named)


@dataclass(frozen=True, slots=True)
class Anchored(Budgeted):
    """Anchored Decoding ("kl"), Anchored_inf ("max"), or a Rényi order between them; certified.

    Source: paper, algorithm AnchoredDecode and section "Anchored Decoding with Renyi Divergence".
    """

    divergences: ClassVar[tuple[Divergence, ...]] = ("kl", "renyi", "max")
    is_projection = True

    @property
    def name(self) -> str:
        return "anchored_inf" if self.divergence == "max" else "anchored"

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self._project)


@dataclass(frozen=True, slots=True)
class NoOpt(Budgeted):
    """p_r where the step's budget allows it, else p_s: budget and debt without the optimum between.

    Certified: p_r is taken on the tokens that both models allow, as the projection takes it, and
    costs its divergence there. Source: paper, section "Ablations".
    """

    name = "no_opt"
    divergences: ClassVar[tuple[Divergence, ...]] = ("kl", "renyi", "max")
    is_projection = True

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self._risky_or_safe)

    def _risky_or_safe(self, inputs: StepInputs) -> NextToken:
        first = self._project(replace(inputs, uniform=None))
        # A row that has no p_r keeps its budget, so that it fails here too.
        has_budget = (first.weight == 1.0) | ~first.is_valid
        budget = torch.where(has_budget, inputs.budget, 0.0)
        return self._project(replace(inputs, budget=budget))
