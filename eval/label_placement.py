"""Where the text beside each point of a scatter plot goes, so that little is covered."""

from collections.abc import Sequence
from itertools import product

from matplotlib.axes import Axes
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox

_DISTANCES_PT = (9, 16, 25, 36)
_DIRECTIONS = ((1, 0), (-1, 0), (0.7, 1), (-0.7, 1), (0.7, -1), (-0.7, -1), (0, 1), (0, -1))
_LEADER_FROM_PT = 20
_POINT_RADIUS_PX = 6.0
_OBSTACLE_RADIUS_PX = 2.0


def label_points(
    axes: Axes,
    positions: Sequence[tuple[float, float]],
    labels: Sequence[str],
    *,
    obstacles: Sequence[tuple[float, float]] = (),
    font_size: float = 9,
) -> list[Annotation]:
    """Write each label near its point, at the free place that is closest to it.

    positions, obstacles: data coordinates, both kept clear; the limits of `axes` must be final
    and its figure needs an Agg canvas. A label with no free place takes the one that covers
    least; a thin line leads to labels that lie far off.
    """
    axes.figure.canvas.draw()  # settles the layout, and with it where points lie in pixels
    taken = [_box_around(axes, position, _POINT_RADIUS_PX) for position in positions]
    taken += [_box_around(axes, position, _OBSTACLE_RADIUS_PX) for position in obstacles]
    annotations = []
    for position, label in zip(positions, labels, strict=True):
        annotation = axes.annotate(
            label,
            position,
            xytext=(0, 0),
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
            fontsize=font_size,
        )
        annotation.set_in_layout(False)  # else each label would move the points
        taken.append(_move_to_free_place(axes, annotation, taken))
        annotations.append(annotation)
    return annotations


def _box_around(axes: Axes, position: tuple[float, float], radius: float) -> Bbox:
    x, y = axes.transData.transform(position)
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def _move_to_free_place(axes: Axes, annotation: Annotation, taken: list[Bbox]) -> Bbox:
    best_cost, best_place, best_box = float("inf"), (0.0, 0.0, 0.0), Bbox.null()
    for distance, (x, y) in product(_DISTANCES_PT, _DIRECTIONS):
        place = (x * distance, y * distance, x)
        box = _place(axes, annotation, *place)
        cost = sum(_shared_area(box, other) for other in taken) + _area_outside(axes.bbox, box)
        if cost < best_cost:
            best_cost, best_place, best_box = cost, place, box
    _place(axes, annotation, *best_place)
    is_far = max(abs(best_place[0]), abs(best_place[1])) > _LEADER_FROM_PT
    assert annotation.arrow_patch is not None
    annotation.arrow_patch.set_visible(is_far)
    return best_box


def _place(axes: Axes, annotation: Annotation, x: float, y: float, side: float) -> Bbox:
    annotation.set_position((x, y))
    annotation.set_horizontalalignment("left" if side > 0 else "right" if side < 0 else "center")
    annotation.set_verticalalignment("center")
    annotation.get_window_extent()  # carries the new offset over to the text
    return Text.get_window_extent(annotation)  # the text alone, without its leader line


def _shared_area(first: Bbox, second: Bbox) -> float:
    shared = Bbox.intersection(first, second)
    return 0.0 if shared is None else shared.width * shared.height


def _area_outside(frame: Bbox, box: Bbox) -> float:
    return box.width * box.height - _shared_area(frame, box)
