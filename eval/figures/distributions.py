"""Curves of several groups: series, histograms, tails and densities."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb

from .style import COLORS, legend_entries, new_figure, panel_grid, set_log_scale

DASHES: Final = ("-", "--", "-.", ":")
NUM_POINTS: Final = 200
FEW_POINTS: Final = 30
"""So many of a curve have markers."""
LEGEND_LINE: Final = 0.18
"""Inches that a name takes in the legend."""
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
    """A panel for each entry, in it a curve for each of its series.

    look: "steps" for counts by bins, whose x is where each begins. log_y: panels with a logarithmic
    axis. colors: by the name of a curve, as of the method that it is of; curves of one color get
    shades and dashes of their own. path: .png, .svg or .pdf.
    """
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
                _draw(axes, series, label, looks[label], look)
            axes.set_title(name)
            if log_x and any(x > 0 for series in curves.values() for x in series.x):
                set_log_scale(axes.xaxis)
            if name in log_y and any(y > 0 for series in curves.values() for y in series.y):
                set_log_scale(axes.yaxis)
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
        if len(names) > 1:
            handles = legend_entries(axes_of)
            shown = (list(handles.values()), list(handles))
            figure.legend(*shown, loc="outside right upper", fontsize=8)


def _looks(names: Sequence[str], colors: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Color and dashes of each curve: those of one color get darker in their order."""
    color_of = {name: colors.get(name, COLORS[i % len(COLORS)]) for i, name in enumerate(names)}
    looks = {}
    for name, color in color_of.items():
        same = [other for other in names if color_of[other] == color]
        number = same.index(name)
        white = 0.6 * (1 - (number + 1) / len(same))
        red, green, blue = ((1 - white) * part + white for part in to_rgb(color))
        shade = to_hex((red, green, blue))
        looks[name] = {"color": shade, "linestyle": DASHES[number % len(DASHES)], "linewidth": 1.6}
    return looks


def _draw(axes: Axes, series: Series, label: str, style: dict[str, Any], look: Look) -> None:
    if look == "steps":
        axes.step(*series, where="post", label=label, **style)
    else:
        marker = "o" if len(series.x) <= FEW_POINTS else ""
        axes.plot(*series, marker=marker, markersize=4, label=label, **style)


def histogram(values: Sequence[float], edges: Sequence[float], count: int) -> Series:
    """By where each bin begins, its number of values as a share of `count`; 0 after the last."""
    counts, _ = np.histogram(values, edges)
    return Series(list(edges), [*(counts / count).tolist(), 0.0])


def tail(values: Sequence[float], start: float) -> Series:
    """x from `start` on, and which share of the values is at or above each (the CCDF)."""
    in_order = sorted(values)
    x = [start, *(each for each in in_order if each > start)]
    at_or_above = len(in_order) - np.searchsorted(in_order, x, side="left")
    return Series(x, (at_or_above / len(in_order)).tolist())


def density(values: Sequence[float]) -> Series:
    """Points and the density there: Gaussian kernels of Silverman's width.

    Source: Silverman 1986, equation 3.31. Values that are all one get a width of their size.
    """
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
