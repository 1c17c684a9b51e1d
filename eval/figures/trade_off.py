"""The picture of the trade-off between protection from copying and utility."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox
from numpy.typing import NDArray

from ..copying.literal import HIGH_PROTECTION
from ..copying.metrics import METRICS
from ..recorded_texts import grouped
from ..statistics import Array
from .style import BLACK, GREY, Look, draw_legend, new_figure


@dataclass(frozen=True, slots=True)
class Scale:
    """An axis, which is drawn so that up and right is better."""

    label: str
    lower_is_better: bool = False

    @classmethod
    def bits_per_byte(cls, held_out_set: str) -> "Scale":
        """The scale of a held-out set's bits per byte."""
        return cls(f"bits per byte, {held_out_set}", lower_is_better=True)

    @property
    def sign(self) -> float:
        """The factor of a figure by which more is better."""
        return -1.0 if self.lower_is_better else 1.0


_FRONT: Final = "Pareto front"
LEGEND_CHARACTERS: Final = 26
"""Characters of a line of the legend: two columns of them fit under a panel."""
INSET: Final = (0.18, 0.08, 0.44, 0.5)
"""Part of a panel for the enlarged corner, which methods that are worth a point do not reach."""
_LABEL_OFFSETS: Final = tuple((x, y) for y in (6, -14, 18, -26) for x in (6, -6))
"""Points to the right (left where negative) and up at which a label is tried, in turn."""
NCR: Final = Scale("normalized copying reduction")
"""1 is the safe model, 0 the risky one."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TradeOffPoint:
    """One setting; a standard deviation of nan or 0 draws no error bar."""

    label: str
    """The setting's name without its method."""
    method: str
    """The method's name in the legend."""
    look: Look
    """The look of the method, the same for all of its points."""
    protection: float
    utility: float
    num_metrics: int = len(METRICS)
    """Copying metrics that an NCR is over."""
    protection_std: float = math.nan
    utility_std: float = math.nan
    num_seeds: int = 1
    resampled: tuple[Array, Array] | None = None
    """Protection and utility in the same resamples of prompts, if known."""


def plot_trade_off(
    panels: Mapping[str, Sequence[TradeOffPoint]],
    path: Path,
    *,
    title: str,
    utility: Scale | Mapping[str, Scale],
    protection: Scale = NCR,
) -> None:
    """Protection against utility, up and right being better; a color and marker a method. An inset
    enlarges a crowded corner of high protection and good utility. A dotted line is the
    `pareto_front`; darker rings have a larger share of resamples in which the setting is on it
    (`front_shares`). panels: points in the order of their methods' settings, which a line joins, by
    the title of the panel; those without a finite figure are left out. utility: one for all panels,
    or one for each. path: .png, .svg or .pdf."""
    scales = utility if isinstance(utility, Mapping) else dict.fromkeys(panels, utility)
    points = [point for panel in panels.values() for point in panel]
    names = {method: _legend_name(same) for method, same in _by_method(points).items()}
    num_columns = 2 if len(panels) == 1 else 3
    lines = len(names) / num_columns + sum(name.count("\n") for name in names.values())
    with new_figure(
        path,
        5.0 if len(panels) == 1 else 2.2 + 4.6 * len(panels),  # one is read on a phone too
        5.0 + 0.2 * lines,
        title=title,
        caption=_caption(points, protection),
    ) as figure:
        axes_of = list(figure.subplots(1, len(panels), squeeze=False).flat)
        for axes, (name, panel) in zip(axes_of, panels.items(), strict=True):
            for method, settings in _by_method(_finite(panel)).items():
                _draw_points(axes, settings, names[method])
            _draw_front(axes, panel, protection, scales[name])
            axes.margins(0.1)
            if protection is NCR:
                _draw_high_protection(axes)
            axes.set_title(name if len(panels) > 1 else "", loc="left", pad=16)
            _draw_scale(axes.xaxis, protection, points)
            _draw_scale(axes.yaxis, scales[name], points)
            axes.yaxis.label.set_visible(axes is axes_of[0] or isinstance(utility, Mapping))
        shown = [*names.values(), _FRONT]
        draw_legend(figure, axes_of, shown, loc="outside lower center", ncols=num_columns)
        figure.get_figure(root=True).draw_without_rendering()  # fixes the positions of texts
        for axes, (name, panel) in zip(axes_of, panels.items(), strict=True):
            _draw_details(axes, _finite(panel), protection, scales[name])


def _legend_name(points: Sequence[TradeOffPoint]) -> str:
    """A method with its settings in their order, as "Anchored: k=1, 2, 4"."""
    method = points[0].method
    labels = list(dict.fromkeys(point.label for point in points if point.label))
    if not labels:
        return method
    first, *others = labels
    prefix = first.partition("=")[0] + "="
    if all(label.startswith(prefix) and "," not in label for label in labels):
        others = [label.removeprefix(prefix) for label in others]
    return textwrap.fill(f"{method}: {', '.join([first, *others])}", LEGEND_CHARACTERS)


def _by_method(points: Sequence[TradeOffPoint]) -> dict[str, list[TradeOffPoint]]:
    return grouped(points, lambda point: point.method)


def _finite(points: Sequence[TradeOffPoint]) -> list[TradeOffPoint]:
    return [p for p in points if math.isfinite(p.protection) and math.isfinite(p.utility)]


def _draw_points(axes: Axes, points: Sequence[TradeOffPoint], name: str) -> None:
    color, marker = points[0].look
    figures = [(p.protection, p.utility, p.utility_std, p.protection_std) for p in points]
    x, y, y_error, x_error = zip(*figures, strict=True)
    # Capped: a bar along the line through the points would not show without its ends. The caps are
    # narrower than a point, which hides those of a bar of next to no length.
    axes.errorbar(x, y, y_error, x_error, fmt="none", ecolor=color, elinewidth=1, capsize=3)
    axes.plot(x, y, "-", color=color, marker=marker, markersize=7, label=name, zorder=3)


def _draw_details(
    axes: Axes, points: Sequence[TradeOffPoint], protection: Scale, utility: Scale
) -> None:
    """Draw names of settings, and an inset of the corner of good settings if they crowd in it."""
    corner = _corner(points, utility) if protection is NCR else []
    inset = _draw_inset(axes, corner, points, protection, utility) if corner else None
    if inset is not None:
        _draw_labels(inset, corner, points)
    others = [point for point in points if inset is None or point not in corner]
    _draw_labels(axes, others, points)


def _corner(points: Sequence[TradeOffPoint], utility: Scale) -> list[TradeOffPoint]:
    """The protected settings in the better half of the utilities, if several methods have some;
    [] if they have room enough."""
    if not points:
        return []
    utilities = [point.utility for point in points]
    middle = (min(utilities) + max(utilities)) / 2
    corner = [
        point
        for point in points
        if point.protection >= HIGH_PROTECTION and utility.sign * (point.utility - middle) >= 0
    ]
    is_narrow = min(point.protection for point in points) < HIGH_PROTECTION - 0.25
    return corner if is_narrow and len(_by_method(corner)) > 1 and len(corner) > 3 else []


def _draw_inset(
    axes: Axes,
    corner: Sequence[TradeOffPoint],
    points: Sequence[TradeOffPoint],
    protection: Scale,
    utility: Scale,
) -> Axes | None:
    """The enlarged corner; None if points are in the part of the panel for it."""
    left, bottom, width, height = INSET
    to_panel = axes.transData + axes.transAxes.inverted()
    positions = [to_panel.transform((point.protection, point.utility)) for point in points]
    if any(x < left + width and y < bottom + height for x, y in positions):
        return None
    inset = axes.inset_axes(INSET)
    for settings in _by_method(points).values():
        _draw_points(inset, settings, "")
    _draw_front(inset, points, protection, utility)
    x_and_y = zip(*[(point.protection, point.utility) for point in corner], strict=True)
    for axis, figures in zip((inset.xaxis, inset.yaxis), x_and_y, strict=True):
        margin = 0.3 * (max(figures) - min(figures)) or 0.01
        axis.set_view_interval(min(figures) - margin, max(figures) + margin, ignore=True)
        axis.set_tick_params(labelsize=7)
        axis.set_major_locator(MaxNLocator(4))
    inset.yaxis.set_inverted(utility.lower_is_better)
    inset.set_title("high protection and good utility, larger", fontsize=8, color=GREY, pad=3)
    inset.spines[:].set(visible=True, color=GREY, linewidth=0.8)
    (x0, x1), (y0, y1) = inset.get_xlim(), inset.get_ylim()
    axes.indicate_inset((x0, y0, x1 - x0, y1 - y0), edgecolor=GREY)  # a frame alone
    return inset


def _draw_labels(
    axes: Axes, shown: Sequence[TradeOffPoint], points: Sequence[TradeOffPoint]
) -> None:
    """Draw the names of settings at the ends of their methods' lines, clear of lines and names.
    points: all of the panel, some of which are shown here."""
    size = 6.25  # half of a point's, in pixels
    taken, num_settings = [], {}
    for method, settings in _by_method(points).items():
        pixels = axes.transData.transform([(p.protection, p.utility) for p in settings])
        on_line = np.linspace(pixels[:-1], pixels[1:], 12).reshape(-1, 2)
        taken += [Bbox.from_extents(x - size, y - size, x + size, y + size) for x, y in pixels]
        taken += [Bbox.from_extents(x - 1, y - 1, x + 1, y + 1) for x, y in on_line]
        taken += [box for point in settings for box in _bars(axes, point)]
        num_settings[method] = len(settings)
    is_lone_sweep = sum(count > 1 for count in num_settings.values()) == 1
    for method, settings in _by_method(shown).items():
        # The ends of a line show the direction of the legend's settings. A lone line has room for
        # the names between them.
        ends = [settings[0], settings[-1]] if num_settings[method] > 1 else []
        between = settings[1:-1] if is_lone_sweep else []
        for point in dict.fromkeys([*ends, *between]):
            look: dict[str, Any] = {"xytext": _LABEL_OFFSETS[0], "textcoords": "offset points"}
            look |= {"fontsize": 8, "color": point.look[0]}
            label = axes.annotate(point.label, (point.protection, point.utility), **look)
            for offset in _LABEL_OFFSETS:
                label.set(position=offset, horizontalalignment="left" if offset[0] > 0 else "right")
                box = label.get_window_extent()
                if not box.count_overlaps(taken) and axes.bbox.count_contains(box.corners()) == 4:
                    break
            else:
                if point in between:
                    label.remove()
                    continue
            taken.append(box)


def _bars(axes: Axes, point: TradeOffPoint) -> list[Bbox]:
    """Boxes of a point's error bars, in pixels."""
    x, y = point.protection, point.utility
    x_std, y_std = np.fmax(0.0, (point.protection_std, point.utility_std))
    ends = [[(x - x_std, y), (x + x_std, y)], [(x, y - y_std), (x, y + y_std)]]
    return [Bbox(axes.transData.transform(bar)).padded(1) for bar in ends]


def _draw_front(
    axes: Axes, points: Sequence[TradeOffPoint], protection: Scale, utility: Scale
) -> None:
    """Draw a line along the front, and rings as dark as their settings are often on it."""
    front = pareto_front(points, protection, utility)
    shares = front_shares(points, protection, utility)
    line = np.array([(point.protection, point.utility) for point in front]).reshape(-1, 2)
    axes.plot(*line.T, ":", color=GREY, linewidth=1, label=_FRONT)
    ring: dict[str, Any] = {"marker": "o", "markersize": 12, "markerfacecolor": "none"}
    for point in _finite(points):
        ring["alpha"] = shares.get(point, float(point in front))
        axes.plot(point.protection, point.utility, color=BLACK, **ring)


def _draw_scale(axis: Axis, scale: Scale, points: Sequence[TradeOffPoint]) -> None:
    label = scale.label
    if scale is NCR:
        counts, num_all = sorted({point.num_metrics for point in points}), len(METRICS)
        if counts != [num_all]:
            label += f" over {' or '.join(map(str, counts))} of {num_all} metrics"
        label += " (1 = safe model)"
    if scale.lower_is_better:
        label += "\n(lower is better: axis reversed)"
        axis.set_inverted(True)
    axis.set_label_text(label)


def _caption(points: Sequence[TradeOffPoint], protection: Scale) -> str:
    lines = ["Up and to the right is better."]
    if protection is NCR:
        lines[0] += f" Protection is called high where the reduction is at least {HIGH_PROTECTION}."
    if any(point.protection_std > 0.0 or point.utility_std > 0.0 for point in points):
        num_seeds = max(point.num_seeds for point in points)
        lines.append(f"Bars: one standard deviation over {num_seeds} seeds, to either side.")
    lines.append("Dotted line and rings: the Pareto front.")
    if any(point.resampled is not None for point in points):
        lines.append("A darker ring: on the front in more bootstrap resamples of the prompts.")
    return "\n".join(lines)


def _draw_high_protection(axes: Axes) -> None:
    axes.axvline(HIGH_PROTECTION, color=GREY, linestyle="--", linewidth=1, zorder=1)
    look: dict[str, Any] = {"ha": "left", "va": "bottom", "color": GREY, "fontsize": 9}
    look["transform"] = axes.get_xaxis_transform()
    axes.text(HIGH_PROTECTION, 1.0, "high protection \N{RIGHTWARDS ARROW}", **look)
    limits = axes.get_xlim()
    axes.axvspan(HIGH_PROTECTION, max(limits), color=GREY, alpha=0.07, linewidth=0)
    axes.set_xlim(limits)


def pareto_front(
    points: Sequence[TradeOffPoint], protection: Scale, utility: Scale
) -> list[TradeOffPoint]:
    """The points to which no other is better in one figure and as good in the other, by protection.
    Points without a finite figure are left out; equal points are all kept."""
    finite = _finite(points)
    figures = np.array([(point.protection, point.utility) for point in finite]).reshape(-1, 2, 1)
    on_front = _unbeaten(figures, protection, utility)[:, 0]
    front = [point for point, is_on in zip(finite, on_front, strict=True) if is_on]
    return sorted(front, key=lambda point: point.protection)


def front_shares(
    points: Sequence[TradeOffPoint], protection: Scale, utility: Scale
) -> dict[TradeOffPoint, float]:
    """The share of resamples in which each point is on the front of those that have resamples. A
    front of measured figures does not show how near others come to it: of two settings that are as
    good, each is on it in about half of the resamples."""
    known = [point for point in _finite(points) if point.resampled is not None]
    if not known:
        return {}
    on_front = _unbeaten(np.array([point.resampled for point in known]), protection, utility)
    return dict(zip(known, on_front.mean(1).tolist(), strict=True))


def _unbeaten(figures: Array, protection: Scale, utility: Scale) -> NDArray[np.bool_]:
    """(P, R): whether no other point has one figure better and the other as good. figures: (P, 2,
    R), protection and utility of P points in R resamples. A point is not on the front of a resample
    in which one of its figures is not finite, and beats none there."""
    x, y = protection.sign * figures[:, 0], utility.sign * figures[:, 1]
    as_good = (x[:, None] >= x) & (y[:, None] >= y)
    is_beaten = (as_good & ((x[:, None] > x) | (y[:, None] > y))).any(0)
    return np.isfinite(x) & np.isfinite(y) & ~is_beaten
