"""Figures with their intervals: copying over k, and scores of models on benchmarks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .style import BLUE, COLORS, GREY, new_figure, set_log_scale

HATCHES = ("", "//", "..", "xx")
"""Hatches of bars: another for each round of the colors."""
GROUP_WIDTH = 0.8
"""Part of the distance between two benchmarks that the bars of one take."""


Interval = tuple[float, float, float]
"""A figure with the ends of its interval; an infinite end is not drawn."""


def plot_calibration(
    points: Mapping[float, Interval],
    path: Path,
    *,
    chosen: float,
    target: float,
    fresh: Interval | None = None,
    figure_name: str,
    symbol: str = "token",
    caption: str,
) -> None:
    """The figure at every measured k with its interval, over k on a logarithmic axis.

    points: by k, ascending. chosen: the k of one of them; fresh: the figure there on seeds that it
    was not chosen by. figure_name: of the vertical axis and the target. symbol: what k is given
    for, "token" or "byte". caption: how many prompts and seeds, and which interval. path: .png,
    .svg or .pdf.
    """
    title = f"{figure_name} at every measured k: k = {chosen:g} is taken"
    with new_figure(path, 6.4, 4.4, title=title, caption=caption) as figure:
        axes = figure.add_subplot()
        set_log_scale(axes.xaxis)
        axes.axhline(target, color=GREY, linestyle="--", linewidth=1, label="target")
        _draw(axes, points, marker="o", linewidth=1.4, label="measured")
        look: dict[str, Any] = {"marker": "o", "markersize": 13, "markerfacecolor": "none"}
        value = points[chosen][0]
        axes.plot(chosen, value, color=BLUE, linestyle="none", label="taken", **look)
        if fresh is not None:
            # Beside the chosen point: both intervals would lie on each other.
            look = {"marker": "^", "markerfacecolor": "white", "linestyle": "none"}
            _draw(axes, {0.94 * chosen: fresh}, label="fresh seeds (drawn beside)", **look)
        axes.set_xlabel(f"k (nats a {symbol})")
        axes.set_ylabel(figure_name)
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4)


def _draw(axes: Axes, points: Mapping[float, Interval], **look: Any) -> None:
    """Points with what their intervals reach to either side: an expanded one may leave out the
    mean."""
    values, lows, highs = np.array(list(points.values())).T
    lengths = np.array([values - lows, highs - values])
    lengths = np.where(np.isfinite(lengths), np.maximum(lengths, 0.0), 0.0)
    axes.errorbar(list(points), values, lengths, color=BLUE, capsize=3, elinewidth=1, **look)


def plot_scores(
    scores: Mapping[str, Sequence[tuple[float, float]]],
    benchmarks: Sequence[str],
    path: Path,
    *,
    title: str,
) -> None:
    """A group of bars a benchmark, a bar a model.

    scores: by model, in the order of the benchmarks: share and standard error; nan draws nothing.
    path: .png, .svg or .pdf.
    """
    width = max(6.4, 0.35 * len(benchmarks) * (1 + len(scores)))
    caption = "Each benchmark by its best variant. Bars: one standard error."
    with new_figure(path, width, 4.2, title=title, caption=caption) as figure:
        axes = figure.add_subplot()
        bar = GROUP_WIDTH / len(scores)
        for number, (model, values) in enumerate(scores.items()):
            offset = (number + 0.5) * bar - GROUP_WIDTH / 2
            axes.bar(
                [index + offset for index in range(len(benchmarks))],
                [value for value, _ in values],
                bar,
                yerr=[error for _, error in values],
                label=model,
                color=COLORS[number % len(COLORS)],
                hatch=HATCHES[number // len(COLORS) % len(HATCHES)],
                error_kw={"elinewidth": 0.8},
            )
        axes.set_xticks(range(len(benchmarks)), benchmarks, rotation=30, ha="right")
        axes.set_ylabel("score")
        figure.legend(loc="outside lower center", ncols=3, handletextpad=0.4)
