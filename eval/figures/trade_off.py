"""Pictures of the trade-off between protection from copying and utility."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.axis import Axis

from ..copying.metrics import METRICS
from ..copying.ncr import HIGH_PROTECTION
from .style import (
    BLACK,
    GREY,
    ORANGE,
    PURPLE,
    ROLE_STYLE,
    SKY,
    Role,
    figure_style,
    label_points,
    legend_entries,
    new_figure,
    save_figure,
)


@dataclass(frozen=True, slots=True)
class Scale:
    """What an axis shows; it is drawn so that up and right is better."""

    label: str
    lower_is_better: bool = False

    @classmethod
    def bits_per_byte(cls, held_out_set: str) -> "Scale":
        """Of held-out text."""
        return cls(f"bits per byte, {held_out_set}", lower_is_better=True)

    def is_as_good(self, one: float, other: float) -> bool:
        """Whether `one` is no worse than `other`."""
        return one <= other if self.lower_is_better else one >= other


NCR: Final = Scale("normalized copying reduction")
"""1 is the safe model, 0 the risky one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeOffPoint:
    """One setting; a standard deviation of nan or 0 draws no error bar."""

    label: str
    role: Role
    protection: float
    utility: float
    num_metrics: int = len(METRICS)
    """Copying metrics that an NCR is over."""
    protection_std: float = math.nan
    utility_std: float = math.nan
    method: str = ""
    """What it is a setting of, where several methods are compared."""


def plot_trade_off(
    points: Sequence[TradeOffPoint],
    path: Path,
    *,
    utility_name: str = "extra source",
    symbol: str = "token",
    num_seeds: int = 1,
) -> None:
    """NCR against held-out bits per byte, drawn so that up and right is better.

    points: of NCR and bits per byte, in order of k; the "anchored" ones are joined by a line.
    utility_name: the held-out set that bits per byte were measured on. symbol: what k is given for,
    "token" or "byte". num_seeds: of each point, for the caption. A point whose NCR is nan has no
    place and no label. path: .png, .svg or .pdf.
    Raises: ValueError if there are no points or the suffix is another.
    """
    if not points:
        raise ValueError("a trade-off picture needs at least one point, got none")
    with figure_style():
        figure = new_figure(
            6.4,
            5.0,
            title=f"Protection and utility, one point a budget (k nats a {symbol})",
            caption=_trade_off_caption(points, NCR, num_seeds),
        )
        axes = figure.add_subplot()
        for role in ROLE_STYLE:
            _draw_role(axes, [point for point in points if point.role == role])
        _draw_high_protection(axes)
        axes.margins(0.1)
        _draw_scale(axes.xaxis, NCR, points)
        _draw_scale(axes.yaxis, Scale.bits_per_byte(utility_name), points)
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4)
        placed = [point for point in points if not math.isnan(point.protection)]
        positions = [(point.protection, point.utility) for point in placed]
        lines = [[(p.protection, p.utility) for p in placed if p.role == "anchored"]]
        lines += [*_error_bar_lines(placed), [(HIGH_PROTECTION, y) for y in axes.get_ylim()]]
        lines = [line for line in lines if line]
        label_points(axes, positions, [point.label for point in placed], lines=lines)
        save_figure(figure, path)


def _draw_role(axes: Axes, points: Sequence[TradeOffPoint]) -> None:
    if not points:
        return
    colour, marker, name = ROLE_STYLE[points[0].role]
    line = "-" if points[0].role == "anchored" else "none"
    _draw_points(axes, points, colour, marker, line, name)


def _draw_points(
    axes: Axes, points: Sequence[TradeOffPoint], colour: str, marker: str, line: str, name: str
) -> None:
    x = [point.protection for point in points]
    y = [point.utility for point in points]
    x_error, y_error = zip(*(_error_bar(point) for point in points), strict=True)
    # Capped: a bar along the line through the points would not show without its ends. The caps are
    # narrower than a point, which hides those of a bar of next to no length.
    axes.errorbar(x, y, y_error, x_error, fmt="none", ecolor=colour, elinewidth=1, capsize=3)
    axes.plot(x, y, color=colour, marker=marker, markersize=7, linestyle=line, label=name, zorder=3)


def _draw_scale(axis: Axis, scale: Scale, points: Sequence[TradeOffPoint]) -> None:
    label = scale.label
    if scale is NCR:
        label += f"{_scope(points)} (1 = safe model)"
    if scale.lower_is_better:
        label += "\n(lower is better: axis reversed)"
        axis.set_inverted(True)
    axis.set_label_text(label)


def _scope(points: Sequence[TradeOffPoint]) -> str:
    """Over how many metrics the points' NCR are, where that is not all of them."""
    counts = sorted({point.num_metrics for point in points})
    if counts == [len(METRICS)]:
        return ""
    return f" over {' or '.join(map(str, counts))} of {len(METRICS)} metrics"


def _error_bar(point: TradeOffPoint) -> tuple[float, float]:
    """Half lengths along x and y; a point of one seed has no spread and gets no bar."""
    stds = (point.protection_std, point.utility_std)
    x, y = (0.0 if math.isnan(std) else std for std in stds)
    return x, y


def _error_bar_lines(points: Sequence[TradeOffPoint]) -> list[list[tuple[float, float]]]:
    lines = []
    for point in points:
        x, y = _error_bar(point)
        lines.append([(point.protection + sign * x, point.utility) for sign in (-1, 1)])
        lines.append([(point.protection, point.utility + sign * y) for sign in (-1, 1)])
    return lines


def _trade_off_caption(points: Sequence[TradeOffPoint], protection: Scale, num_seeds: int) -> str:
    caption = "Up and to the right is better."
    if protection is NCR:
        caption += f" Protection is called high where the reduction is at least {HIGH_PROTECTION}."
    if not any(sum(_error_bar(point)) for point in points):
        return caption
    return f"{caption}\nBars: one standard deviation over {num_seeds} seeds, to either side."


def _draw_high_protection(axes: Axes) -> None:
    axes.axvline(HIGH_PROTECTION, color=GREY, linestyle="--", linewidth=1, zorder=1)
    axes.text(
        HIGH_PROTECTION,
        1.0,
        f"high protection, {HIGH_PROTECTION} \N{RIGHTWARDS ARROW}",
        transform=axes.get_xaxis_transform(),
        ha="left",
        va="bottom",
        color=GREY,
        fontsize=9,
    )


def pareto_front(
    points: Sequence[TradeOffPoint], protection: Scale, utility: Scale
) -> list[TradeOffPoint]:
    """The points to which no other is better in one figure and as good in the other, by protection.

    Points without a place are left out; equal points are all kept.
    """
    placed = _placed(points)

    def is_beaten(point: TradeOffPoint) -> bool:
        return any(
            protection.is_as_good(other.protection, point.protection)
            and utility.is_as_good(other.utility, point.utility)
            and (other.protection, other.utility) != (point.protection, point.utility)
            for other in placed
        )

    return sorted((p for p in placed if not is_beaten(p)), key=lambda p: p.protection)


def plot_methods(
    panels: Mapping[str, Sequence[TradeOffPoint]],
    path: Path,
    *,
    title: str,
    utility: Scale,
    protection: Scale = NCR,
    num_seeds: int = 1,
) -> None:
    """The trade-off of several methods: a colour and a marker a method, its settings joined.

    panels: points in the order of their methods' settings, by the title of the panel; what may be
    had at once is ringed, and a dotted line leads along it (`pareto_front`). num_seeds, path: as
    for `plot_trade_off`. Points without a place are left out.
    Raises: ValueError if there is no point or the suffix is another.
    """
    points = [point for own in panels.values() for point in own]
    if not points:
        raise ValueError("a picture of methods needs at least one point, got none")
    looks = _looks(points)
    caption = _trade_off_caption(points, protection, num_seeds)
    caption += "\nRings and dots: what no other setting of the panel betters (Pareto front)."
    with figure_style():
        figure = new_figure(2.2 + 4.6 * len(panels), 5.6, title=title, caption=caption)
        axes_of = list(figure.subplots(1, len(panels), squeeze=False).flat)
        for axes, (name, own) in zip(axes_of, panels.items(), strict=True):
            _draw_panel(axes, _placed(own), looks, (protection, utility))
            axes.set_title(name if len(panels) > 1 else "", loc="left", pad=16)
            _draw_scale(axes.xaxis, protection, points)
            _draw_scale(axes.yaxis, utility, points)
            axes.yaxis.label.set_visible(axes is axes_of[0])
        handles = legend_entries(axes_of)
        names = sorted(handles, key=lambda name: name == _FRONT)  # else as they came
        shown = [handles[name] for name in names]
        figure.legend(shown, names, loc="outside lower center", ncols=5)
        for axes, own in zip(axes_of, panels.values(), strict=True):
            _label_panel(axes, _placed(own), protection)
        save_figure(figure, path)


_FRONT: Final = "Pareto front"
_COLOURS: Final = (PURPLE, ORANGE, SKY, BLACK)
_METHOD_LOOKS: Final = tuple(
    (colour, marker)
    for turn in range(4)
    for colour, marker in zip(_COLOURS, "^vPX"[turn:] + "^vPX"[:turn], strict=True)
)
"""Colours come again, with another marker, where there are more methods than colours."""


def _looks(points: Sequence[TradeOffPoint]) -> dict[str, tuple[str, str]]:
    """Colour and marker by method, the same in all panels; more methods than looks share them."""
    free, looks = itertools.cycle(_METHOD_LOOKS), {}
    for point in points:
        if point.method not in looks:
            is_baseline = point.role == "baseline"
            looks[point.method] = next(free) if is_baseline else ROLE_STYLE[point.role][:2]
    return looks


def _placed(points: Sequence[TradeOffPoint]) -> list[TradeOffPoint]:
    return [p for p in points if math.isfinite(p.protection) and math.isfinite(p.utility)]


def _by_method(points: Sequence[TradeOffPoint]) -> dict[str, list[TradeOffPoint]]:
    names = dict.fromkeys(point.method for point in points)
    return {name: [point for point in points if point.method == name] for name in names}


def _draw_panel(
    axes: Axes,
    points: Sequence[TradeOffPoint],
    looks: Mapping[str, tuple[str, str]],
    scales: tuple[Scale, Scale],
) -> None:
    for method, own in _by_method(points).items():
        _draw_points(axes, own, *looks[method], "-", method)
    front = [(point.protection, point.utility) for point in pareto_front(points, *scales)]
    ring: dict[str, Any] = {"marker": "o", "markersize": 12, "markerfacecolor": "none"}
    x, y = ([point[place] for point in front] for place in (0, 1))
    axes.plot(x, y, ":", color=GREY, linewidth=1, label=_FRONT, **ring)
    axes.margins(0.1)
    if scales[0] is NCR:
        _draw_high_protection(axes)
        limits = axes.get_xlim()
        axes.axvspan(HIGH_PROTECTION, max(limits), color=GREY, alpha=0.07, linewidth=0)
        axes.set_xlim(limits)


def _label_panel(axes: Axes, points: Sequence[TradeOffPoint], protection: Scale) -> None:
    """Once the legend has its place; points without a label of their own are kept clear."""
    own = [[(point.protection, point.utility) for point in p] for p in _by_method(points).values()]
    lines = [*_error_bar_lines(points), *own]
    lines += [[(p.protection, p.utility)] * 2 for p in points if not p.label]
    if protection is NCR:
        lines.append([(HIGH_PROTECTION, y) for y in axes.get_ylim()])
    labelled = [point for point in points if point.label]
    positions = [(point.protection, point.utility) for point in labelled]
    label_points(axes, positions, [point.label for point in labelled], lines=lines)
