"""Anchored Decoding: the risky model inside an information budget of the safe one."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...fields import check_choice, check_fields, checked_nats
from ...kernels.project import project
from ...kernels.projection import Projection
from ..settings import BudgetOptions, BudgetSize, DebtOptions, Divergence
from .budget import Budget, prefix_debt
from .rule import NextToken, OpenRule, Rule, StepInputs, Symbols


@dataclass(frozen=True)  # no slots: rules have other options as a second base
class Indebted(DebtOptions, Rule):
    """A certified rule that projects the risky model onto what a step may spend, and whose prompts
    have debts."""

    is_certified = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.debt_window < 1:
            raise ValueError(f"debt_window must be >= 1, got {self.debt_window}")
        self.budget_for(horizon=1, k=None)  # ValueError for nats that no budget has

    @property
    def charges_debt(self) -> bool:
        return self.debt != "none"

    def debt_for(self, ratios: Tensor) -> float:
        return prefix_debt(ratios, mode=self.debt, window=self.debt_window)

    def _project(self, inputs: StepInputs) -> Projection:
        risky, safe = inputs.warped("risky"), inputs.warped("safe")
        # Without an allowance p* is p_s whatever the risky model says, NaN too: while a text is
        # decoded that model does not run there, so nobody would know. Most steps have no such row,
        # but to ask a device would be to wait for it.
        rests = inputs.budget <= 0.0
        if rests.device.type != "cpu" or bool(rests.any()):
            risky = torch.where(rests[:, None], safe, risky)
        assert self.charge is not None  # as each of these rules bounds a divergence
        return project(risky, safe, inputs.budget, inputs.uniform, charge=self.charge)


@dataclass(frozen=True, slots=True)
class Budgeted(BudgetOptions, BudgetSize, Indebted):
    """A rule whose spends stay within a budget, and bound the divergence from the safe model.

    It has either k, in whose place a call may give another, or K.
    """

    divergences: ClassVar[tuple[Divergence, ...]] = ("kl",)
    """The divergences that the rule can spend: a subclass with others names them."""

    def __post_init__(self) -> None:
        if (self.k is None) == (self.K is None):
            raise ValueError(f"give either k or K, got k={self.k} and K={self.K}")
        checked_nats("k" if self.K is None else "K", self.k if self.K is None else self.K)
        check_choice("divergence", self.divergence, self.divergences)
        Indebted.__post_init__(self)

    def settings(self) -> dict[str, Any]:
        """As of `Rule`, but for a bank of None: without one a ledger is the paper's."""
        settings = Rule.settings(self)
        return {name: value for name, value in settings.items() if (name, value) != ("bank", None)}

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        if k is not None and self.K is not None:
            raise ValueError(
                f"the rule has K={self.K:g} for a whole text, a call cannot give k={k:g} as well: "
                "make the rule with k, or leave k out"
            )
        k = self.k if k is None else k
        return Budget.of(horizon=horizon, k=k, K=self.K, schedule=self.budget, bank=self.bank)


@dataclass(frozen=True, slots=True)
class Anchored(Budgeted):
    """Anchored Decoding ("kl"), which charges each step its KL, or Anchored_inf ("max"), which
    charges its worst token; certified.

    Source: paper, algorithm AnchoredDecode and section "Anchored Decoding with Renyi Divergence".
    """

    divergences: ClassVar[tuple[Divergence, ...]] = ("kl", "max")
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
    divergences: ClassVar[tuple[Divergence, ...]] = ("kl", "max")
    is_projection = True

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self._risky_or_safe)

    def _risky_or_safe(self, inputs: StepInputs) -> NextToken:
        first = self._project(replace(inputs, uniform=None))
        # A row that has no p_r keeps its budget, so that it fails here too.
        has_budget = (first.weight == 1.0) | ~first.is_valid
        budget = torch.where(has_budget, inputs.budget, 0.0)
        return self._project(replace(inputs, budget=budget))
