"""Figures of several groups: curves, histograms, tails and densities."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from .style import (
    COLORS,
    figure_style,
    legend_entries,
    new_figure,
    save_figure,
    set_log_scale,
)

DASHES: Final = ("-", "--", "-.", ":")
NUM_BINS: Final = 40
NUM_POINTS: Final = 200
LEGEND_LINE: Final = 0.18
"""Inches that a name takes in the legend."""
Look = Literal["lines", "steps"]
Samples = Mapping[str, Sequence[float]]
"""Finite figures by group."""


class Series(NamedTuple):
    """Positions along x and figures there, one of each a point."""

    x: Sequence[float]
    y: Sequence[float]


def looks(number: int) -> dict[str, Any]:
    """Color and dashes of the curve of this number."""
    dashes = DASHES[number // len(COLORS) % len(DASHES)]
    return {"color": COLORS[number % len(COLORS)], "linestyle": dashes, "linewidth": 1.6}


def plot_series(
    panels: Mapping[str, Mapping[str, Series]],
    path: Path,
    *,
    title: str,
    x_label: str,
    y_label: str,
    look: Look = "lines",
    log_x: bool = False,
) -> None:
    """A panel for each entry, in it a curve for each of its series.

    look: "steps" for counts by bins, whose x is where each begins. path: .png, .svg or .pdf.
    Raises: ValueError without panels or for another suffix.
    """
    panels = {
        panel: {name: series for name, series in curves.items() if series.x}
        for panel, curves in panels.items()
    }
    if not panels:
        raise ValueError("a picture of series needs at least one panel, got none")
    num_columns = min(3, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    with figure_style():
        width, height = max(6.4, 0.6 + 3.2 * num_columns), max(4.2, 1.6 + 2.4 * num_rows)
        height = max(height, LEGEND_LINE * len(names) + 1.0)  # else names would be cut off
        figure = new_figure(width, height, title=title, caption="")
        axes_of = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for axes in axes_of[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, curves) in zip(axes_of, panels.items(), strict=False):
            for label, series in curves.items():
                _draw(axes, series, label, names.index(label), look)
            axes.set_title(name)
            if log_x and any(x > 0 for series in curves.values() for x in series.x):
                set_log_scale(axes.xaxis)
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
        if len(names) > 1:
            handles = legend_entries(axes_of)
            shown = (list(handles.values()), list(handles))
            figure.legend(*shown, loc="outside right upper", fontsize=8)
        save_figure(figure, path)


def _draw(axes: Axes, series: Series, label: str, number: int, look: Look) -> None:
    style = looks(number)
    if look == "steps":
        axes.step(*series, where="post", label=label, **style)
    else:
        axes.plot(*series, marker="o", markersize=4, label=label, **style)


def plot_histogram_and_tail(
    samples: Samples, path: Path, *, tail_from: float, title: str, label: str
) -> None:
    """Above, shares of each group by size; below, the share at or above each x >= tail_from.

    path: .png, .svg or .pdf. Raises: ValueError without samples or for another suffix.
    """
    _check(samples)
    pooled = np.concatenate([np.array(values) for values in samples.values()])
    edges = np.linspace(min(0.0, pooled.min()), pooled.max() or 1.0, NUM_BINS + 1)
    with figure_style():
        caption = f"Above: shares of each group. Below: shares at or above x, from {tail_from:.3g}."
        figure = new_figure(6.8, 6.2, title=title, caption=caption)
        above, below = figure.subplots(2, 1)
        for number, (name, values) in enumerate(samples.items()):
            if values:
                counts, _ = np.histogram(values, edges)
                above.stairs(counts / len(values), edges, label=name, **looks(number))
                x, share = tail(values, tail_from)
                below.step(x, share, where="post", **looks(number))
        above.set_ylabel("share of steps")
        below.set_ylabel("share at or above x")
        below.set_xlabel(label)
        if below.lines and any(np.any(line.get_ydata() > 0) for line in below.lines):
            set_log_scale(below.yaxis)
        figure.legend(loc="outside upper center", ncols=4)
        save_figure(figure, path)


def tail(values: Sequence[float], start: float) -> tuple[list[float], list[float]]:
    """x from `start` on, and which share of the values is at or above each (the CCDF)."""
    in_order = sorted(values)
    x = [start, *(each for each in in_order if each > start)]
    at_or_above = len(in_order) - np.searchsorted(in_order, x, side="left")
    return x, (at_or_above / len(in_order)).tolist()


def plot_densities(panels: Mapping[str, Samples], path: Path, *, title: str, label: str) -> None:
    """A panel of densities (Gaussian kernels, Silverman's width) for each kind of figure.

    path: .png, .svg or .pdf. Raises: ValueError without samples or for another suffix.
    """
    _check(*panels.values())
    names = list(dict.fromkeys(name for values in panels.values() for name in values))
    with figure_style():
        caption = "Densities by Gaussian kernels; a stroke at the foot is one figure."
        figure = new_figure(0.6 + 4.2 * len(panels), 3.9, title=title, caption=caption)
        for axes, (kind, samples) in zip(
            figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True
        ):
            for name, values in samples.items():
                if values:
                    look = looks(names.index(name))
                    axes.plot(*density(values), label=name, **look)
                    if len(values) <= NUM_POINTS:
                        axes.plot(
                            values, [0.0] * len(values), "|", color=look["color"], markersize=8
                        )
            axes.set_title(kind)
            axes.set_xlabel(label)
            axes.set_ylabel("density")
            axes.legend()
        save_figure(figure, path)


def density(values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    return points, total / (len(sample) * width * np.sqrt(2 * np.pi))


def _check(*panels: Samples) -> None:
    if not any(len(values) for samples in panels for values in samples.values()):
        raise ValueError("a picture of distributions needs at least one finite figure, got none")
