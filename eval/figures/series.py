"""Series of figures in panels: lines, steps or points, a colour a series."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from matplotlib.axes import Axes

from .distributions import looks
from .style import COLOURS, figure_style, legend_entries, new_figure, save_figure, set_log_scale

MARKERS: Final = ("o", "^", "s", "x")
"""Of points: another for each round of colours."""
LEGEND_LINE: Final = 0.18
"""Inches that a name takes in the legend."""
Look = Literal["lines", "steps", "points"]


class Series(NamedTuple):
    """Places and figures, one of each a point."""

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
) -> None:
    """A panel for each entry, in it a curve (or points) for each of its series.

    look: "steps" for counts by bins, whose x is where each begins. path: .png, .svg or .pdf.
    Raises: ValueError without panels or for another suffix.
    """
    panels = {
        panel: {name: series for name, series in own.items() if series.x}
        for panel, own in panels.items()
    }
    if not panels:
        raise ValueError("a picture of series needs at least one panel, got none")
    num_columns = min(3, len(panels))
    num_rows = math.ceil(len(panels) / num_columns)
    names = list(dict.fromkeys(name for own in panels.values() for name in own))
    with figure_style():
        width, height = max(6.4, 0.6 + 3.2 * num_columns), max(4.2, 1.6 + 2.4 * num_rows)
        height = max(height, LEGEND_LINE * len(names) + 1.0)  # else names would be cut off
        figure = new_figure(width, height, title=title, caption="")
        axes_of = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for axes in axes_of[len(panels) :]:
            axes.set_axis_off()
        for axes, (name, own) in zip(axes_of, panels.items(), strict=False):
            for label, series in own.items():
                _draw(axes, series, label, names.index(label), look)
            axes.set_title(name)
            if log_x and any(x > 0 for series in own.values() for x in series.x):
                set_log_scale(axes.xaxis)
        figure.supxlabel(x_label, fontsize=10)
        figure.supylabel(y_label, fontsize=10)
        if len(names) > 1:
            handles = legend_entries(axes_of)
            shown = (list(handles.values()), list(handles))
            figure.legend(*shown, loc="outside right upper", fontsize=8)
        save_figure(figure, path)


def _draw(axes: Axes, series: Series, label: str, place: int, look: Look) -> None:
    style = looks(place)
    if look == "points":
        marker = MARKERS[place // len(COLOURS) % len(MARKERS)]
        look_of = {"color": style["color"], "markersize": 3.5, "alpha": 0.6}
        axes.plot(*series, marker, label=label, **look_of)
    elif look == "steps":
        axes.step(*series, where="post", label=label, **style)
    else:
        axes.plot(*series, marker="o", markersize=4, label=label, **style)
