"""Pictures of training losses."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .style import ROLE_STYLE, Role, figure_style, new_figure, save_figure

_LINE_STYLES: Final = ("-", "--", "-.", ":")


@dataclass(frozen=True, kw_only=True, slots=True)
class LossCurve:
    """Training loss in nats per token at each recorded step, in the colour of the model."""

    label: str
    role: Role
    steps: Sequence[int]
    losses_nats: Sequence[float]


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
            colour = ROLE_STYLE[curve.role][0]
            axes.plot(curve.steps, curve.losses_nats, color=colour, alpha=0.25, linewidth=0.8)
            smooth = _running_mean(curve.losses_nats, half_width)
            axes.plot(curve.steps, smooth, dashes, color=colour, linewidth=1.6, label=curve.label)
        axes.set_xlabel("step")
        axes.set_ylabel("loss (nats per token)")
        axes.legend()
        save_figure(figure, path)


def _running_mean(values: Sequence[float], width: int) -> list[float]:
    sums = list(itertools.accumulate(values, initial=0.0))
    windows = [(max(0, i - width), min(len(values), i + width + 1)) for i in range(len(values))]
    return [(sums[end] - sums[start]) / (end - start) for start, end in windows]
