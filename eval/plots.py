"""Pictures of recorded results: the trade-off, budgets over time and loss curves."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from matplotlib.axes import Axes

from .copying import METRICS
from .figure_style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    VERMILION,
    figure_style,
    new_figure,
    save_figure,
)
from .label_placement import label_points
from .ncr import HIGH_PROTECTION

Role = Literal["safe", "risky", "anchored", "baseline"]

# Each role has a marker of its own beside its colour.
_ROLE_STYLE: Final = {
    "safe": (GREEN, "s", "safe model"),
    "risky": (VERMILION, "D", "risky model"),
    "anchored": (BLUE, "o", "Anchored Decoding"),
    "baseline": (PURPLE, "^", "other methods"),
}
_LINE_STYLES: Final = ("-", "--", "-.", ":")
_BUDGET_CAPTION: Final = (
    "k nats accrue with every {symbol}. They first pay the debt of the prompt (shaded); then they "
    "may be spent, at once or later.\n"
    "Ticks at the foot: the safe model's draw was rejected and the risky model's taken."
)


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


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetTrajectory:
    """One generation's ledger as series; one spend (nats) and one accepted flag per step."""

    label: str
    k: float
    debt: float
    bound: float
    spends: Sequence[float]
    accepted: Sequence[bool]

    def __post_init__(self) -> None:
        if len(self.spends) != len(self.accepted):
            raise ValueError(
                f"spends and accepted must have one value per step, got {len(self.spends)} "
                f"and {len(self.accepted)}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """Training loss in nats per token at each recorded step, in the colour of the model."""

    label: str
    role: Role
    steps: Sequence[int]
    losses_nats: Sequence[float]


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
        for role in _ROLE_STYLE:
            _draw_role(axes, [point for point in points if point.role == role])
        _draw_high_protection(axes)
        axes.invert_yaxis()
        axes.margins(0.1)
        axes.set_xlabel(f"normalized copying reduction{_scope(points)} (1 = safe model)")
        axes.set_ylabel(f"bits per byte, {utility_name}\n(lower is better: axis reversed)")
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.4)
        placed = [point for point in points if not math.isnan(point.ncr)]
        positions = [(point.ncr, point.bits_per_byte) for point in placed]
        lines = [[(p.ncr, p.bits_per_byte) for p in placed if _is_joined(p)]]
        lines += [*_error_bar_lines(placed), _high_protection_line(axes)]
        lines = [line for line in lines if line]
        label_points(axes, positions, [point.label for point in placed], lines=lines)
        save_figure(figure, path)


def plot_budget_trajectories(
    trajectories: Sequence[BudgetTrajectory], path: Path, *, symbol: str = "token"
) -> None:
    """Spend so far, its allowance max(0, (t + 1) k - debt), debt and bound, a panel a generation.

    Ticks at the foot mark the steps where the draw from the safe model was rejected (`accepted`
    is False) and the token is the risky model's. symbol: what a step draws, "token" or "byte".
    path: .png, .svg or .pdf.
    Raises: ValueError if there are no trajectories or the suffix is another.
    """
    if not trajectories:
        raise ValueError("a budget picture needs at least one trajectory, got none")
    num_columns = 2 if len(trajectories) == 4 else min(3, len(trajectories))
    num_rows = math.ceil(len(trajectories) / num_columns)
    with figure_style():
        figure = new_figure(
            0.6 + 3.4 * num_columns,
            1.6 + 2.6 * num_rows,
            title="What a generation may spend and what it spent, summed over its steps",
            caption=_BUDGET_CAPTION.format(symbol=symbol),
        )
        panels = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
        for axes, trajectory in itertools.zip_longest(panels, trajectories):
            if trajectory is None:
                axes.set_axis_off()
            else:
                _draw_trajectory(axes, trajectory)
        figure.supxlabel(symbol, fontsize=10)
        figure.supylabel("nats", fontsize=10)
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=5)
        save_figure(figure, path)


def plot_loss_curves(curves: Sequence[LossCurve], path: Path) -> None:
    """Training loss over steps: a faint raw line and its centred running mean.

    Curves of one role have one colour and different dashes. path: .png, .svg or .pdf.
    Raises: ValueError if there are no curves or the suffix is another.
    """
    if not curves:
        raise ValueError("a loss picture needs at least one curve, got none")
    half_width = max(len(curve.losses_nats) for curve in curves) // 60
    with figure_style():
        figure = new_figure(
            6.4,
            4.4,
            title="Training loss of the models",
            caption="Faint: as recorded. Strong: its running mean over "
            f"{2 * half_width + 1} records.",
        )
        axes = figure.add_subplot()
        for curve, dashes in zip(curves, itertools.cycle(_LINE_STYLES), strict=False):
            colour = _ROLE_STYLE[curve.role][0]
            axes.plot(curve.steps, curve.losses_nats, color=colour, alpha=0.25, linewidth=0.8)
            smooth = _running_mean(curve.losses_nats, half_width)
            axes.plot(curve.steps, smooth, dashes, color=colour, linewidth=1.6, label=curve.label)
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats per token)")
        axes.legend()
        save_figure(figure, path)


def _draw_role(axes: Axes, points: Sequence[TradeOffPoint]) -> None:
    if not points:
        return
    colour, marker, name = _ROLE_STYLE[points[0].role]
    x = [point.ncr for point in points]
    y = [point.bits_per_byte for point in points]
    x_error, y_error = zip(*(_error_bar(point) for point in points), strict=True)
    # Capped: a bar along the line through the points would not show without its ends. The caps are
    # narrower than a point, which hides those of a bar of next to no length.
    axes.errorbar(x, y, y_error, x_error, fmt="none", ecolor=colour, elinewidth=1, capsize=3)
    line = "-" if _is_joined(points[0]) else "none"
    axes.plot(x, y, color=colour, marker=marker, markersize=7, linestyle=line, label=name, zorder=3)


def _scope(points: Sequence[TradeOffPoint]) -> str:
    """Over how many metrics the points' NCR are, where that is not all of them."""
    counts = sorted({point.num_metrics for point in points})
    if counts == [len(METRICS)]:
        return ""
    return f" over {' or '.join(map(str, counts))} of {len(METRICS)} metrics"


def _is_joined(point: TradeOffPoint) -> bool:
    return point.role == "anchored"


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


def _high_protection_line(axes: Axes) -> list[tuple[float, float]]:
    return [(HIGH_PROTECTION, y) for y in axes.get_ylim()]


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


def _draw_trajectory(axes: Axes, trajectory: BudgetTrajectory) -> None:
    steps = range(1, len(trajectory.spends) + 1)
    accrued = [step * trajectory.k for step in steps]
    allowance = [max(0.0, nats - trajectory.debt) for nats in accrued]
    spent = list(itertools.accumulate(trajectory.spends))
    axes.axhline(trajectory.bound, color=GREY, linestyle=":", linewidth=1.2, label="bound")
    axes.fill_between(
        steps, allowance, accrued, color=ORANGE, alpha=0.25, linewidth=0, label="debt"
    )
    axes.plot(steps, spent, color=BLUE, linewidth=2.4, label="spent")
    # Over the line of what was spent, which often lies on it.
    axes.plot(steps, allowance, "--", color=ORANGE, linewidth=1.2, label="allowance")
    _draw_interventions(axes, trajectory)
    axes.set_title(
        f"{trajectory.label}\ndebt {trajectory.debt:.3g}, bound {trajectory.bound:.4g} nats"
    )
    top = max([trajectory.bound, *accrued, *spent]) or 1.0
    axes.set_ylim(-0.05 * top, 1.05 * top)  # the ticks get a strip of their own below 0


def _draw_interventions(axes: Axes, trajectory: BudgetTrajectory) -> None:
    rejected = [step for step, kept in enumerate(trajectory.accepted, start=1) if not kept]
    axes.plot(
        rejected,
        [0.02] * len(rejected),
        "|",
        color=VERMILION,
        markersize=6,
        transform=axes.get_xaxis_transform(),
        label="risky model intervened",
    )


def _running_mean(values: Sequence[float], width: int) -> list[float]:
    sums = list(itertools.accumulate(values, initial=0.0))
    windows = [(max(0, i - width), min(len(values), i + width + 1)) for i in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in windows]
