"""Pictures of figures: curves of several groups, figures with intervals, bars of benchmarks."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb

from ..recorded_texts import grouped
from .style import BLUE, COLORS, GREY, draw_legend, new_figure, panel_grid, set_log_scale

DASHES: Final = ("-", "--", "-.", ":")
NUM_POINTS: Final = 200
FEW_POINTS: Final = 30
"""Largest number of points of a curve with markers."""
LEGEND_LINE: Final = 0.18
"""Inches of a name in the legend."""
HATCHES = ("", "//", "..", "xx")
"""Hatches of bars, one for each round of the colors."""
GROUP_WIDTH = 0.8
"""Part of the distance between two benchmarks that the bars of one take."""
Interval = tuple[float, float, float]
"""A figure with the ends of its interval; an infinite end is not drawn."""
Look = Literal["lines", "steps"]


class Series(NamedTuple):
    """Positions along x and figures there, one of each a point."""

    x: Sequence[float]
    y: Sequence[float]


def plot_series(
    panels: Mapping[str, Mapping[str, Series]],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    look: Look = "lines",
    log_x: bool = False,
    log_y: Collection[str] = (),
    colors: Mapping[str, str] | None = None,
) -> None:
    """A panel for each entry, in it a curve for each of its series. look: "steps" for counts by
    bins, whose x is the start of each. log_y: panels with a logarithmic axis. colors: of curves by
    name, such as of their methods; curves of one color differ in shades and dashes. path: .png,
    .svg or .pdf."""
    panels = {
        panel: {name: series for name, series in curves.items() if series.x}
        for panel, curves in panels.items()
    }
    num_columns = min(3, len(panels))
    num_rows = -(-len(panels) // num_columns)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    looks = _looks(names, colors or {})
    width, height = max(6.4, 0.6 + 3.2 * num_columns), max(4.2, 1.6 + 2.4 * num_rows)
    height = max(height, LEGEND_LINE * len(names) + 1.0)  # else names would be cut off
    with new_figure(path, width, height, title=title) as figure:
        axes_of = panel_grid(figure, len(panels), num_columns)
        for axes, (name, curves) in zip(axes_of, panels.items(), strict=True):
            for label, series in curves.items():
                style = {"label": label, "linewidth": 1.6, **looks[label]}
                if look == "steps":
                    axes.step(*series, where="post", **style)
                else:
                    marker = "o" if len(series.x) <= FEW_POINTS else ""
                    axes.plot(*series, marker=marker, markersize=4, **style)
            axes.set_title(name)
            if log_x and any(x > 0 for series in curves.values() for x in series.x):
                set_log_scale(axes.xaxis)
            if name in log_y and any(y > 0 for series in curves.values() for y in series.y):
                set_log_scale(axes.yaxis)
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
        if len(names) > 1:
            draw_legend(figure, axes_of, names, loc="outside right upper", fontsize=8)


def _looks(names: Sequence[str], colors: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Color and dashes of each curve: those of one color get darker in their order."""
    looks: dict[str, dict[str, Any]] = {}
    color_of = {name: colors.get(name, COLORS[i % len(COLORS)]) for i, name in enumerate(names)}
    for color, same in grouped(names, color_of.__getitem__).items():
        for number, name in enumerate(same):
            white = 0.6 * (1 - (number + 1) / len(same))
            red, green, blue = ((1 - white) * part + white for part in to_rgb(color))
            dashes = DASHES[number % len(DASHES)]
            looks[name] = {"color": to_hex((red, green, blue)), "linestyle": dashes}
    return looks


def histogram(values: Sequence[float], edges: Sequence[float], count: int) -> Series:
    """Shares of `count` in each bin, by the start of the bin; 0 after the last."""
    counts, _ = np.histogram(values, edges)
    return Series(list(edges), [*(counts / count).tolist(), 0.0])


def tail(values: Sequence[float], start: float) -> Series:
    """x from `start` on, and the share of the values at or above each (the CCDF)."""
    in_order = sorted(values)
    x = [start, *(each for each in in_order if each > start)]
    at_or_above = len(in_order) - np.searchsorted(in_order, x, side="left")
    return Series(x, (at_or_above / len(in_order)).tolist())


def density(values: Sequence[float]) -> Series:
    """Points and the density there: Gaussian kernels of Silverman's width. Source: Silverman 1986,
    equation 3.31. Values that are all one get a width of their size."""
    sample = np.array(values, dtype=np.float64)
    spread = min(float(sample.std()), float(np.subtract(*np.quantile(sample, [0.75, 0.25]))) / 1.34)
    spread = spread or float(sample.std()) or max(abs(float(sample[0])), 1.0) * 0.1
    width = 0.9 * spread * len(sample) ** -0.2
    points = np.linspace(sample.min() - 3 * width, sample.max() + 3 * width, NUM_POINTS)
    total = np.zeros(NUM_POINTS)
    # In parts: whole matrices may not fit in memory.
    for part in np.array_split(sample, len(sample) // 4096 + 1):
        total += np.exp(-0.5 * ((points[:, None] - part) / width) ** 2).sum(1)
    return Series(points.tolist(), (total / (len(sample) * width * np.sqrt(2 * np.pi))).tolist())


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
    """The figure at every measured k with its interval, over k on a logarithmic axis. points: by k,
    ascending. chosen: the k of one of them; fresh: its figure on seeds by which it was not chosen.
    figure_name: of the vertical axis and the target. symbol: the unit of k, "token" or "byte".
    caption: numbers of prompts and seeds, and the interval. path: .png, .svg or .pdf."""
    title = f"{figure_name} at every measured k: k = {chosen:g} is taken"
    with new_figure(path, 6.4, 4.4, title=title, caption=caption) as figure:
        axes = figure.add_subplot()
        set_log_scale(axes.xaxis)
        axes.axhline(target, color=GREY, linestyle="--", linewidth=1, label="target")
        _draw_intervals(axes, points, marker="o", linewidth=1.4, label="measured")
        look: dict[str, Any] = {"marker": "o", "markersize": 13, "markerfacecolor": "none"}
        value = points[chosen][0]
        axes.plot(chosen, value, color=BLUE, linestyle="none", label="taken", **look)
        if fresh is not None:
            # Next to the chosen point: both intervals would lie on each other.
            look = {"marker": "^", "markerfacecolor": "white", "linestyle": "none"}
            look["label"] = "fresh seeds (drawn next to it)"
            _draw_intervals(axes, {0.94 * chosen: fresh}, **look)
        axes.set_xlabel(f"k (nats per {symbol})")
        axes.set_ylabel(figure_name)
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4)


def _draw_intervals(axes: Axes, points: Mapping[float, Interval], **look: Any) -> None:
    """Points with their intervals; an expanded one may leave out the mean."""
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
    """A group of bars per benchmark, with a bar per model. scores: by model, in the order of the
    benchmarks: share and standard error; nan draws nothing. path: .png, .svg or .pdf."""
    width = max(6.4, 0.35 * len(benchmarks) * (1 + len(scores)))
    caption = "Each benchmark by its best variant. Bars: one standard error."
    with new_figure(path, width, 4.2, title=title, caption=caption) as figure:
        axes = figure.add_subplot()
        bar = GROUP_WIDTH / len(scores)
        for number, (model, figures) in enumerate(scores.items()):
            offset = (number + 0.5) * bar - GROUP_WIDTH / 2
            values, errors = zip(*figures, strict=True)
            look = dict[str, Any](color=COLORS[number % len(COLORS)], error_kw={"elinewidth": 0.8})
            look["hatch"] = HATCHES[number // len(COLORS) % len(HATCHES)]
            positions = [index + offset for index in range(len(benchmarks))]
            axes.bar(positions, values, bar, yerr=errors, label=model, **look)
        axes.set_xticks(range(len(benchmarks)), benchmarks, rotation=30, ha="right")
        axes.set_ylabel("score")
        options = {"loc": "outside lower center", "ncols": 3, "handletextpad": 0.4}
        draw_legend(figure, [axes], scores, **options)
