"""How all pictures look: colours, fonts, labels beside points, files that do not change."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure, SubFigure
from matplotlib.text import Annotation, Text
from matplotlib.ticker import NullFormatter
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

# Okabe and Ito 2008: told apart with any colour vision.
GREEN, VERMILION, BLUE, PURPLE, ORANGE = "#009E73", "#D55E00", "#0072B2", "#CC79A7", "#E69F00"
SKY, BLACK = "#56B4E9", "#000000"
GREY: Final = "#5F5F5F"
COLOURS: Final = (VERMILION, BLUE, GREEN, PURPLE, ORANGE, GREY)
"""Of curves and bars in their order, where no role has a colour of its own."""
# The same figure gives the same bytes: no time of writing, and no random ids in SVG (below).
_UNDATED: Final[dict[str, dict[str, None]]] = {
    ".png": {},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
_EDGE: Final = 0.01  # where title and caption begin, as a share of the width
_RC: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.titlesize": 10,
    "legend.frameon": False,
    "svg.hashsalt": "anchored",
    "text.parse_math": False,  # names of settings and works are text: "$" stays what it is
}


def figure_style() -> Any:
    """A context in which figures are drawn and saved."""
    return rc_context(_RC)


def new_figure(width: float, height: float, *, title: str, caption: str) -> SubFigure:
    """An empty figure of this many inches between a title and a caption that says how to read it.

    What is returned is the part between them: legends "outside" its panels stay clear of both.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would keep the figure alive and pick a windowing backend
    figure.suptitle(title, x=_EDGE, ha="left", fontsize=11, fontweight="bold")
    figure.supxlabel(caption, x=_EDGE, ha="left", fontsize=8.5, color=GREY)
    return figure.add_subfigure(figure.add_gridspec()[0])


def set_log_scale(axis: Axis) -> None:
    """Powers of ten as plain numbers: formulas are not read in any text (see _RC)."""
    axes = axis.axes
    (axes.set_xscale if axis is axes.xaxis else axes.set_yscale)("log")
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def save_figure(figure: SubFigure, path: Path) -> None:
    """Write it with title and caption as .png, .svg or .pdf; ValueError for another suffix."""
    if path.suffix not in _UNDATED:
        raise ValueError(f"path must end in .png, .svg or .pdf, got {path}")
    whole = figure.get_figure(root=True)
    whole.savefig(path, dpi=160, metadata=_UNDATED[path.suffix])


SUFFIXES: Final = (".png", ".svg")
"""Formats in which results are drawn."""
Pictures = dict[str, Callable[[Path], None]]
"""By name, what draws it into a file."""


def drawn(folder: Path, pictures: Mapping[str, Callable[[Path], None]]) -> list[Path]:
    """Draw each in all formats; their paths."""
    paths = []
    for name, draw in pictures.items():
        for suffix in SUFFIXES:
            path = folder / f"{name}{suffix}"
            draw(path)
            paths.append(path)
    return paths


def legend_entries(panels: Iterable[Axes]) -> dict[str, Any]:
    """Handles by label of all panels, each label once, as `Figure.legend` takes them."""
    return {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }


Role = Literal["safe", "risky", "anchored", "baseline"]

# Each role has a marker of its own beside its colour.
ROLE_STYLE: Final = {
    "safe": (GREEN, "s", "safe model"),
    "risky": (VERMILION, "D", "risky model"),
    "anchored": (BLUE, "o", "Anchored Decoding"),
    "baseline": (PURPLE, "^", "other methods"),
}

_DISTANCES_PT = (9, 16, 25, 36)
_DIRECTIONS = ((1, 0), (-1, 0), (0.7, 1), (-0.7, 1), (0.7, -1), (-0.7, -1), (0, 1), (0, -1))
_LEADER_FROM_PT = 14
_POINT_RADIUS_PX = 6.0
_LINE_RADIUS_PX = 3.0  # half of the widest line, and a little air

Pixel = NDArray[np.float64]
"""x, y; the corners of a line have shape (num_corners, 2)."""
Extents = NDArray[np.float64]
"""x0, y0, x1, y1 of a box in pixels; several boxes have shape (num_boxes, 4)."""


def label_points(
    axes: Axes,
    positions: Sequence[tuple[float, float]],
    labels: Sequence[str],
    *,
    lines: Sequence[Sequence[tuple[float, float]]] = (),
) -> list[Annotation]:
    """Write each label near its point, at the free place that is closest to it.

    positions, and lines by their corners: data coordinates, both kept clear; the limits of `axes`
    must be final and its figure needs an Agg canvas. A label with no free place takes the one that
    covers least; a thin line leads to labels that lie far off.
    """
    axes.figure.canvas.draw()  # settles the layout, and with it where points lie in pixels
    to_pixels = axes.transData.transform
    taken = [_extents_around(to_pixels(position), _POINT_RADIUS_PX) for position in positions]
    taken += [extents for corners in lines for extents in _extents_along(to_pixels(corners))]
    annotations = []
    for position, label in zip(positions, labels, strict=True):
        annotation = axes.annotate(
            label,
            position,
            xytext=(0, 0),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
            fontsize=9,
        )
        annotation.set_in_layout(False)  # else each label would move the points
        others = [to_pixels(other) for other in positions if other != position]
        taken.append(_move_to_free_place(axes, annotation, np.array(taken), others))
        annotations.append(annotation)
    return annotations


def _extents_along(corners: Pixel) -> Iterator[Extents]:
    """Boxes that touch one another, from corner to corner, in pixels."""
    for start, end in pairwise(corners):
        count = math.ceil(math.dist(start, end) / (2 * _LINE_RADIUS_PX)) + 1
        for centre in np.linspace(start, end, count):
            yield _extents_around(centre, _LINE_RADIUS_PX)


def _extents_around(centre: Pixel, radius: float) -> Extents:
    return np.concatenate((centre - radius, centre + radius))


def _move_to_free_place(
    axes: Axes, annotation: Annotation, taken: Extents, others: Sequence[Pixel]
) -> Extents:
    """Move the label where it covers least and lies nearest to its own point; its box there."""
    own = axes.transData.transform(annotation.xy)
    best_cost, best_place, best_box = math.inf, (0.0, 0.0, 0.0), Bbox.null()
    for distance, (x, y) in product(_DISTANCES_PT, _DIRECTIONS):
        place = (x * distance, y * distance, x)
        box = _place(axes, annotation, *place)
        area = box.width * box.height
        cost = _covered_area(box, taken) + area - _covered_area(box, np.array([axes.bbox.extents]))
        if any(_distance(box, other) < _distance(box, own) for other in others):
            cost += area / 2  # it would seem to belong to another point
        if cost < best_cost:
            best_cost, best_place, best_box = cost, place, box
    _place(axes, annotation, *best_place)
    is_far = max(abs(best_place[0]), abs(best_place[1])) > _LEADER_FROM_PT
    assert annotation.arrow_patch is not None
    annotation.arrow_patch.set_visible(is_far)
    return np.array(best_box.extents)


def _place(axes: Axes, annotation: Annotation, x: float, y: float, side: float) -> Bbox:
    annotation.set_position((x, y))
    annotation.set_horizontalalignment("left" if side > 0 else "right" if side < 0 else "center")
    annotation.set_verticalalignment("center")
    renderer = cast(FigureCanvasAgg, axes.figure.canvas).get_renderer()
    annotation.update_positions(renderer)  # carries the new offset over to the text
    return Text.get_window_extent(annotation)  # the text alone: its leader line takes longer


def _covered_area(box: Bbox, taken: Extents) -> float:
    """Square pixels of `box` that lie in each of the taken boxes, added up."""
    low, high = np.maximum(taken[:, :2], box.min), np.minimum(taken[:, 2:], box.max)
    return float(np.clip(high - low, 0.0, None).prod(axis=1).sum())


def _distance(box: Bbox, point: Pixel) -> float:
    return math.dist(np.mean([box.min, box.max], axis=0), point)
