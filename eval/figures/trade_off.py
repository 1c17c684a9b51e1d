"""Pictures of the trade-off between copying and utility."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes

from ..copying.metrics import METRICS
from ..copying.ncr import HIGH_PROTECTION
from .style import GREY, ROLE_STYLE, Role, figure_style, label_points, new_figure, save_figure


@dataclass(frozen=True, kw_only=True, slots=True)
class TradeOffPoint:
    """One setting; a standard deviation of nan or 0 draws no error bar."""

    label: str
    role: Role
    ncr: float
    bits_per_byte: float
    num_metrics: int = len(METRICS)
    """Copying metrics that `ncr` is over."""
    ncr_std: float = math.nan
    bits_per_byte_std: float = math.nan


def plot_trade_off(
    points: Sequence[TradeOffPoint],
    path: Path,
    *,
    utility_name: str = "extra source",
    symbol: str = "token",
    num_seeds: int = 1,
) -> None:
    """NCR against held-out bits per byte, drawn so that up and right is better.

    points: in order of k; the "anchored" ones are joined by a line. utility_name: the held-out
    set that bits per byte were measured on. symbol: what k is given for, "token" or "byte".
    num_seeds: of each point, for the caption. A point whose NCR is nan has no place and no label.
    path: .png, .svg or .pdf.
    Raises: ValueError if there are no points or the suffix is another.
    """
    if not points:
        raise ValueError("a trade-off picture needs at least one point, got none")
    with figure_style():
        figure = new_figure(
            6.4,
            5.0,
            title=f"Protection and utility, one point a budget (k nats a {symbol})",
            caption=_trade_off_caption(points, num_seeds),
        )
        axes = figure.add_subplot()
        for role in ROLE_STYLE:
            _draw_role(axes, [point for point in points if point.role == role])
        _draw_high_protection(axes)
        axes.invert_yaxis()
        axes.margins(0.1)
        axes.set_xlabel(f"normalized copying reduction{_scope(points)} (1 = safe model)")
        axes.set_ylabel(f"bits per byte, {utility_name}\n(lower is better: axis reversed)")
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4)
        placed = [point for point in points if not math.isnan(point.ncr)]
        positions = [(point.ncr, point.bits_per_byte) for point in placed]
        lines = [[(p.ncr, p.bits_per_byte) for p in placed if p.role == "anchored"]]
        lines += [*_error_bar_lines(placed), [(HIGH_PROTECTION, y) for y in axes.get_ylim()]]
        lines = [line for line in lines if line]
        label_points(axes, positions, [point.label for point in placed], lines=lines)
        save_figure(figure, path)


def _draw_role(axes: Axes, points: Sequence[TradeOffPoint]) -> None:
    if not points:
        return
    colour, marker, name = ROLE_STYLE[points[0].role]
    x = [point.ncr for point in points]
    y = [point.bits_per_byte for point in points]
    x_error, y_error = zip(*(_error_bar(point) for point in points), strict=True)
    # Capped: a bar along the line through the points would not show without its ends. The caps are
    # narrower than a point, which hides those of a bar of next to no length.
    axes.errorbar(x, y, y_error, x_error, fmt="none", ecolor=colour, elinewidth=1, capsize=3)
    line = "-" if points[0].role == "anchored" else "none"
    axes.plot(x, y, color=colour, marker=marker, markersize=7, linestyle=line, label=name, zorder=3)


def _scope(points: Sequence[TradeOffPoint]) -> str:
    """Over how many metrics the points' NCR are, where that is not all of them."""
    counts = sorted({point.num_metrics for point in points})
    if counts == [len(METRICS)]:
        return ""
    return f" over {' or '.join(map(str, counts))} of {len(METRICS)} metrics"


def _error_bar(point: TradeOffPoint) -> tuple[float, float]:
    """Half lengths along x and y; a point of one seed has no spread and gets no bar."""
    stds = (point.ncr_std, point.bits_per_byte_std)
    x, y = (0.0 if math.isnan(std) else std for std in stds)
    return x, y


def _error_bar_lines(points: Sequence[TradeOffPoint]) -> list[list[tuple[float, float]]]:
    lines = []
    for point in points:
        x, y = _error_bar(point)
        lines.append([(point.ncr + sign * x, point.bits_per_byte) for sign in (-1, 1)])
        lines.append([(point.ncr, point.bits_per_byte + sign * y) for sign in (-1, 1)])
    return lines


def _trade_off_caption(points: Sequence[TradeOffPoint], num_seeds: int) -> str:
    caption = (
        "Up and to the right is better. Protection is called high where the reduction is "
        f"at least {HIGH_PROTECTION}."
    )
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
