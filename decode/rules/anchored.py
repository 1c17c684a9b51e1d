"""Anchored Decoding: the risky model inside an information budget of the safe one."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...kernels.projection import Projection, project_kl, project_max
from ..settings import check_choice, whole_number
from .budget import Budget, DebtMode, Schedule, checked_nats, prefix_debt
from .rule import Divergence, NextToken, Rule, StepInputs


@dataclass(frozen=True, slots=True)
class Budgeted(Rule):
    """A rule whose spends stay within a budget, and bound the divergence from the safe model."""

    k: float | None = None
    """Nats a step; K = k * horizon. Give either k or K; a call may then give another k."""
    divergence: Divergence = "kl"
    debt_window: int = 5
    """Number of prompt tokens whose log-likelihood ratios make the prefix debt."""
    debt: DebtMode = "top"
    budget: Schedule = "adaptive"
    K: float | None = None
    """Nats for the whole sequence; k = K / horizon. A call cannot give a k beside it."""

    is_certified = True

    def __post_init__(self) -> None:
        if (self.k is None) == (self.K is None):
            raise ValueError(f"give either k or K, got k={self.k} and K={self.K}")
        given = "k" if self.K is None else "K"
        object.__setattr__(self, given, checked_nats(given, getattr(self, given)))
        check_choice("divergence", self.divergence, ("kl", "max"))
        check_choice("debt", self.debt, ("top", "average", "none"))
        check_choice("budget", self.budget, ("adaptive", "global", "fixed"))
        window = whole_number("debt_window", self.debt_window)
        object.__setattr__(self, "debt_window", window)
        if window < 1:
            raise ValueError(f"debt_window must be >= 1, got {window}")

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
        return Budget(per_step=per_step, total=total, horizon=horizon, schedule=self.budget)

    def _project(self, inputs: StepInputs) -> Projection:
        project = project_kl if self.divergence == "kl" else project_max
        risky, safe = inputs.warped("risky"), inputs.warped("safe")
        # Without an allowance p* is p_s whatever the risky model says, NaN too: while a text is
        # decoded that model does not run there, so nobody would know. Most steps have no such row,
        # but to ask a device would be to wait for it.
        rests = inputs.budget <= 0.0
        if rests.device.type != "cpu" or bool(rests.any()):
            risky = torch.where(rests[:, None], safe, risky)
        return project(risky, safe, inputs.budget, inputs.uniform)


@dataclass(frozen=True, slots=True)
class Anchored(Budgeted):
    """Anchored Decoding (divergence "kl") or Anchored_inf ("max"); certified.

    Source: paper, algorithm AnchoredDecode and section "Anchored Decoding with Renyi Divergence".
    """

    is_projection = True

    @property
    def name(self) -> str:
        return "anchored" if self.divergence == "kl" else "anchored_inf"

    def next_token(self, inputs: StepInputs) -> NextToken:
        return self._project(inputs)


@dataclass(frozen=True, slots=True)
class NoOpt(Budgeted):
    """p_r where the step's budget allows it, else p_s: budget and debt without the optimum between.

    Certified: p_r is taken on the tokens that both models allow, as the projection takes it, and
    costs its divergence there. Source: paper, section "Ablations".
    """

    name = "no_opt"
    is_projection = True

    def next_token(self, inputs: StepInputs) -> NextToken:
        first = self._project(replace(inputs, uniform=None))
        # A row that has no p_r keeps its budget, so that it fails here too.
        has_budget = (first.weight == 1.0) | ~first.is_valid
        budget = torch.where(has_budget, inputs.budget, 0.0)
        return self._project(replace(inputs, budget=budget))
