"""Picture of one generation: what each step might spend, what it spent, how far the models were."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from ...decode.ledger import Ledger, LedgerHeader
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, figure_style, new_figure, save_figure


def plot_divergences(ledger: Ledger, path: Path) -> None:
    """KL(p* || p_s), KL(p* || p_r), KL(p_r || p_s), the allowance and k of every step, in nats.

    ledger: of `with_divergences`. path: .png, .svg or .pdf; infinite figures are left out.
    Raises: ValueError for a ledger without steps or divergences, or another suffix.
    Source: paper, figure of per-step divergences.
    """
    risky_safe = [step.kl_risky_safe for step in ledger.steps]
    star_risky = [step.kl_star_risky for step in ledger.steps]
    if not ledger.steps or None in [*risky_safe, *star_risky]:
        raise ValueError("the ledger holds no divergences: see with_divergences")
    header = ledger.header
    with figure_style():
        figure = new_figure(
            7.2,
            5.0,
            title=f"One generation, step by step: what a {header.level} might spend and spent",
            caption=_caption(header),
        )
        distances, budget = figure.subplots(2, 1, sharex=True)
        _draw(distances, risky_safe, "models apart: KL(p_r || p_s)", GREEN, "-")
        _draw(distances, star_risky, "p* from the risky model: KL(p* || p_r)", PURPLE, "--")
        budget.axhline(header.k, color=GREY, linestyle=":", linewidth=1.2, label="k")
        _draw(budget, [step.spend for step in ledger.steps], "spend: KL(p* || p_s)", BLUE, "-")
        _draw(budget, [step.budget for step in ledger.steps], "allowance", ORANGE, "--")
        for axes in (distances, budget):
            axes.set_ylabel("nats")
            axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0)
        budget.set_xlabel(header.level)
        save_figure(figure, path)


def _caption(header: LedgerHeader) -> str:
    return (
        f"k = {header.k:g} nats a {header.level}, K = {header.K:.4g}, debt of the prompt "
        f"{header.debt:.3g}, bound {header.bound:.4g} nats.\nThe allowance stays 0 until the debt "
        "is paid; then it grows by k a step, and what is left unspent stays."
    )


def _draw(
    axes: Axes, nats: Sequence[float | None], label: str, colour: str, line_style: str
) -> None:
    shown = [math.nan if each is None or math.isinf(each) else each for each in nats]
    steps = range(1, len(shown) + 1)
    axes.plot(steps, shown, line_style, color=colour, linewidth=1.4, label=label)
