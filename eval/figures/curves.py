"""Curves over steps: budgets and their spends, and divergences of the models."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes

from ...decode.ledger import Ledger
from ...decode.rules.budget import Budget
from ...decode.settings import Charge, Schedule
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, VERMILION, new_figure, panel_grid

_BUDGET_CAPTIONS: Final[dict[Schedule, str]] = {
    "adaptive": "k nats accrue with every {symbol}. They first pay the debt of the prompt; "
    "then they may be spent, at once or later.",
    "global": "Global: all nats may be spent from the first {symbol} on, but those of the debt.",
    "fixed": "Fixed: k nats at every {symbol}; what is left of them is lost.",
}
_SPENDS: Final[dict[Charge | None, str]] = {
    "mean": "spend: KL(p* || p_s)",
    "worst": "spend: largest log-ratio of p* to p_s",
    "drawn": "spend: log-ratio of the token drawn",
}
_TICKS: Final = (
    "Shaded: the debt. Ticks at the foot: the safe model's draw was rejected and the risky model's "
    "taken."
)


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetTrajectory:
    """One generation's ledger as series; one spend (nats) and one accepted flag per step."""

    label: str
    k: float
    debt: float
    bound: float
    spends: Sequence[float]
    accepted: Sequence[bool]
    schedule: Schedule = "adaptive"
    bank: float | None = None

    @classmethod
    def of(cls, label: str, ledger: Ledger) -> "BudgetTrajectory":
        """The trajectory of a ledger with a bound."""
        budget = {name: getattr(ledger.header, name) for name in ("k", "debt", "bound", "bank")}
        return cls(
            label=label,
            spends=[step.spend for step in ledger.steps],
            accepted=[step.accepted for step in ledger.steps],
            schedule=ledger.header.rule_settings.get("budget", "adaptive"),
            **budget,
        )

    @property
    def accrued(self) -> list[float]:
        """Nats that were there by each step, the debt not yet paid."""
        full, allowed = self.bank or 0.0, enumerate(self.allowed, 1)
        if self.schedule == "adaptive":
            return [nats + min(full + step * self.k, self.debt) for step, nats in allowed]
        return [nats + (self.debt if self.schedule == "global" else 0.0) for _, nats in allowed]

    @property
    def allowed(self) -> list[float]:
        """Nats that might have been spent by each step."""
        budget = Budget(
            per_step=self.k,
            total=self.bound + self.debt if self.schedule == "global" else math.inf,
            horizon=len(self.spends),
            debt=self.debt,
            schedule=self.schedule,
            bank=self.bank,
        )
        spent = itertools.accumulate(self.spends, initial=0.0)
        allowances = budget.allowances(self.spends)
        return [before + nats for before, nats in zip(spent, allowances, strict=False)]


def plot_budget_trajectories(
    trajectories: Sequence[BudgetTrajectory], path: Path, *, symbol: str = "token"
) -> None:
    """Spend so far, its allowance by the budget's schedule, debt and bound, in a panel each. Ticks
    at the foot mark the steps where the draw from the safe model was rejected (`accepted` is False)
    and the token is the risky model's. symbol: what a step draws, "token" or "byte". path: .png,
    .svg or .pdf."""
    num_columns = 2 if len(trajectories) == 4 else min(3, len(trajectories))
    num_rows = math.ceil(len(trajectories) / num_columns)
    captions = [
        line for each in trajectories for line in _captions(each.schedule, each.bank, symbol)
    ]
    with new_figure(
        path,
        0.6 + 3.4 * max(2, num_columns),  # the title and the legend need two panels' width
        1.6 + 2.6 * num_rows,
        title="What a generation may spend and what it spent, summed over its steps",
        caption="\n".join([*dict.fromkeys(captions), _TICKS]),
    ) as figure:
        panels = panel_grid(figure, len(trajectories), num_columns)
        for axes, trajectory in zip(panels, trajectories, strict=True):
            _draw_trajectory(axes, trajectory)
        figure.supxlabel(symbol, fontsize=10)
        figure.supylabel("nats", fontsize=10)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)


def _captions(schedule: Schedule, bank: float | None, symbol: str) -> list[str]:
    """Sentences on a schedule, and on a bank."""
    of_bank = (
        [] if bank is None else [f"A bank of {bank:g} is full at the start and holds no more."]
    )
    return [_BUDGET_CAPTIONS[schedule].format(symbol=symbol), *of_bank]


def _draw_trajectory(axes: Axes, trajectory: BudgetTrajectory) -> None:
    steps = range(1, len(trajectory.spends) + 1)
    accrued, allowance = trajectory.accrued, trajectory.allowed
    spent = list(itertools.accumulate(trajectory.spends))
    axes.axhline(trajectory.bound, color=GREY, linestyle=":", linewidth=1.2, label="bound")
    shade: dict[str, Any] = {"color": ORANGE, "alpha": 0.25, "linewidth": 0, "label": "debt"}
    axes.fill_between(steps, allowance, accrued, **shade)
    axes.plot(steps, spent, color=BLUE, linewidth=2.4, label="spent")
    # Over the line of what was spent, which often lies on it.
    axes.plot(steps, allowance, "--", color=ORANGE, linewidth=1.2, label="allowance")
    rejected = [step for step, kept in enumerate(trajectory.accepted, start=1) if not kept]
    look: dict[str, Any] = {"color": VERMILION, "markersize": 6}
    look |= {"transform": axes.get_xaxis_transform(), "label": "risky model intervened"}
    axes.plot(rejected, [0.02] * len(rejected), "|", **look)
    axes.set_title(
        f"{trajectory.label}\ndebt {trajectory.debt:.3g}, bound {trajectory.bound:.4g} nats"
    )
    top, least = max([trajectory.bound, *accrued, *spent]) or 1.0, min(0.0, *spent)
    axes.set_ylim(least - 0.05 * top, 1.05 * top)  # the ticks get a strip below


def plot_divergences(ledgers: Sequence[Ledger], path: Path) -> None:
    """KL(p* || p_s), KL(p* || p_r), KL(p_r || p_s), the allowance and k of every step, in nats.
    ledgers: of `with_divergences`; of several, means over those that have the step. path: .png,
    .svg or .pdf; infinite figures are left out. Raises: ValueError for ledgers without steps or
    divergences. Source: paper, figure of per-step divergences."""
    steps = [ledger.steps for ledger in ledgers]
    if not any(steps) or any(step.kl_star_risky is None for each in steps for step in each):
        raise ValueError("the ledger holds no divergences: see with_divergences")
    header = ledgers[0].header
    count = "One generation" if len(ledgers) == 1 else f"Means of {len(ledgers)} generations"

    def draw(axes: Axes, figure: str, label: str, color: str, line_style: str) -> None:
        rows = ([getattr(step, figure) for step in each] for each in steps)
        columns = itertools.zip_longest(*rows)
        known = (
            [nats for nats in same if nats is not None and nats < math.inf] for same in columns
        )
        means = [math.fsum(nats) / len(nats) if nats else math.nan for nats in known]
        look: dict[str, Any] = {"color": color, "linewidth": 1.4, "label": label}
        axes.plot(range(1, len(means) + 1), means, line_style, **look)

    title = f"{count}, step by step: what a {header.level} might spend and spent"
    with new_figure(path, 7.2, 5.0, title=title, caption=_caption(ledgers)) as figure:
        distances, budget = figure.subplots(2, 1, sharex=True)
        draw(distances, "kl_risky_safe", "models apart: KL(p_r || p_s)", GREEN, "-")
        draw(distances, "kl_star_risky", "p* from the risky model: KL(p* || p_r)", PURPLE, "--")
        budget.axhline(header.k, color=GREY, linestyle=":", linewidth=1.2, label="k")
        draw(budget, "spend", _SPENDS.get(header.charge, "spend"), BLUE, "-")
        draw(budget, "budget", "allowance", ORANGE, "--")
        for axes in (distances, budget):
            axes.set_ylabel("nats")
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
        budget.set_xlabel(header.level)


def _caption(ledgers: Sequence[Ledger]) -> str:
    header = ledgers[0].header
    schedule: Schedule = header.rule_settings.get("budget", "adaptive")

    def ends(name: str, digits: str) -> str:
        values = [getattr(each.header, name) for each in ledgers]
        return " to ".join(dict.fromkeys(format(end(values), digits) for end in (min, max)))

    return (
        f"k = {header.k:g} nats per {header.level}, K = {header.K:.4g}, debt of the prompt "
        f"{ends('debt', '.3g')}, bound {ends('bound', '.4g')} nats.\n"
        + " ".join(_captions(schedule, header.bank, header.level))
    )
