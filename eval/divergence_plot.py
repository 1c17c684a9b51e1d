"""Picture of one generation: what each step might spend, what it spent, how far the models were."""

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes

from ..decode.ledger import Ledger
from .figure_style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    figure_style,
    new_figure,
    save_figure,
)


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
    with figure_style():
        figure = new_figure(7.2, 3.4)
        axes = figure.add_subplot()
        axes.axhline(ledger.header.k, color=GREY, linestyle=":", linewidth=1.2, label="k")
        _draw(axes, [step.budget for step in ledger.steps], "allowance", ORANGE, "--")
        _draw(axes, risky_safe, "KL(p_r || p_s)", GREEN, "-")
        _draw(axes, star_risky, "KL(p* || p_r)", PURPLE, "-.")
        _draw(axes, [step.spend for step in ledger.steps], "spend: KL(p* || p_s)", BLUE, "-")
        axes.set_xlabel(ledger.header.level)
        axes.set_ylabel("nats")
        figure.legend(loc="outside upper center", ncols=5)
        save_figure(figure, path)


def _draw(
    axes: Axes, nats: Sequence[float | None], label: str, colour: str, line_style: str
) -> None:
    shown = [math.nan if each is None or math.isinf(each) else each for each in nats]
    steps = range(1, len(shown) + 1)
    axes.plot(steps, shown, line_style, color=colour, linewidth=1.4, label=label)
