"""Certified rules: the risky model inside an information budget of the safe one."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ...fields import check_choice, check_fields, checked_nats
from ...kernels.project import project, project_kl
from ...kernels.projection import Projection
from ..settings import Charge, Divergence
from .budget import Budget, prefix_debt
from .registry import BudgetOptions, BudgetSize, DebtOptions
from .rule import SAFE, NextToken, OpenRule, Rule, StepInputs, Symbols


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
        """The settings of `Rule` without a bank of None: a ledger without one is the paper's."""
        settings = Rule.settings(self)
        return {name: value for name, value in settings.items() if (name, value) != ("bank", None)}

    @property
    def without_nats(self) -> Self:
        """The rule with nothing to spend: rules that differ in their nats alone have one p* for an
        allowance, so that their rows are drawn together."""
        return replace(self, k=0.0, K=None, bank=None)

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
    def without_nats(self) -> Self:
        """The rule with a budget of 0 nats; see `Budgeted`."""
        return replace(self, k=0.0, bank=0.0)

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


@dataclass(frozen=True, slots=True)
class SafeOnly(Rule):
    """p* = p_s at every step; certified, with a bound of 0 nats. The risky model does not run."""

    name = "safe_only"
    streams: ClassVar = {"safe": SAFE}
    is_certified = True
    is_projection = True
    divergence = "kl"

    def budget_for(self, *, horizon: int, k: float | None) -> Budget:
        return Budget(per_step=0.0, total=0.0, horizon=horizon)

    def open(self, level: Symbols) -> OpenRule:
        return OpenRule.of(self, self._project)

    def _project(self, inputs: StepInputs) -> NextToken:
        safe = inputs.warped("safe")
        return project_kl(safe, safe, torch.zeros_like(inputs.budget), inputs.uniform)
