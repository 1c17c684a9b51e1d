"""Distributions of figures of several groups: histograms, tails and densities."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .style import COLOURS, figure_style, new_figure, save_figure, set_log_scale

DASHES: Final = ("-", "--", "-.", ":")
NUM_BINS: Final = 40
NUM_POINTS: Final = 200
Samples = Mapping[str, Sequence[float]]
"""Finite figures by group."""


def looks(place: int) -> dict[str, Any]:
    """Colour and dashes of the curve of this number."""
    dashes = DASHES[place // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[place % len(COLOURS)], "linestyle": dashes, "linewidth": 1.6}


def plot_histogram_and_tail(
    samples: Samples, path: Path, *, tail_from: float, title: str, label: str
) -> None:
    """Above, shares of each group by size; below, the share at or above each x >= tail_from.

    path: .png, .svg or .pdf. Raises: ValueError without samples or for another suffix.
    """
    _check(samples)
    pooled = np.concatenate([np.array(own) for own in samples.values()])
    edges = np.linspace(min(0.0, pooled.min()), pooled.max() or 1.0, NUM_BINS + 1)
    with figure_style():
        caption = f"Above: shares of each group. Below: shares at or above x, from {tail_from:.3g}."
        figure = new_figure(6.8, 6.2, title=title, caption=caption)
        above, below = figure.subplots(2, 1)
        for place, (name, own) in enumerate(samples.items()):
            if own:
                counts, _ = np.histogram(own, edges)
                above.stairs(counts / len(own), edges, label=name, **looks(place))
                x, share = tail(own, tail_from)
                below.step(x, share, where="post", **looks(place))
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
    _check({kind: [x for own in samples.values() for x in own] for kind, samples in panels.items()})
    names = list(dict.fromkeys(name for own in panels.values() for name in own))
    with figure_style():
        caption = "Densities by Gaussian kernels; a stroke at the foot is one figure."
        figure = new_figure(0.6 + 4.2 * len(panels), 3.9, title=title, caption=caption)
        for axes, (kind, samples) in zip(
            figure.subplots(1, len(panels), squeeze=False).flat, panels.items(), strict=True
        ):
            for name, own in samples.items():
                if own:
                    look = looks(names.index(name))
                    axes.plot(*density(own), label=name, **look)
                    if len(own) <= NUM_POINTS:
                        axes.plot(own, [0.0] * len(own), "|", color=look["color"], markersize=8)
            axes.set_title(kind)
            axes.set_xlabel(label)
            axes.set_ylabel("density")
            axes.legend()
        save_figure(figure, path)


def density(values: Sequence[float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points and the density there: Gaussian kernels of Silverman's width.

    Source: Silverman 1986, equation 3.31. Values that are all one get a width of their size.
    """
    own = np.array(values, dtype=np.float64)
    spread = min(float(own.std()), float(np.subtract(*np.quantile(own, [0.75, 0.25]))) / 1.34)
    spread = spread or float(own.std()) or max(abs(float(own[0])), 1.0) * 0.1
    width = 0.9 * spread * len(own) ** -0.2
    points = np.linspace(own.min() - 3 * width, own.max() + 3 * width, NUM_POINTS)
    total = np.zeros(NUM_POINTS)
    for part in np.array_split(own, len(own) // 4096 + 1):  # whole matrices may not fit in memory
        total += np.exp(-0.5 * ((points[:, None] - part) / width) ** 2).sum(1)
    return points, total / (len(own) * width * np.sqrt(2 * np.pi))


def _check(samples: Samples) -> None:
    if not any(len(own) for own in samples.values()):
        raise ValueError("a picture of distributions needs at least one finite figure, got none")
