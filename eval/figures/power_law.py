"""Losses of small models, the power law through them, and the larger one that it predicts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..power_law import Prediction
from .style import BLUE, GREY, VERMILION, figure_style, new_figure, save_figure, set_log_scale


def plot_power_law(
    points: Sequence[tuple[float, float]],
    prediction: Prediction,
    target: float,
    path: Path,
    *,
    others: Sequence[tuple[float, float]] = (),
    title: str,
) -> None:
    """Size and loss of each model that the law was fitted to, its curve, and the interval.

    points: (parameters, nats a token). others: models that it was not fitted to, in grey.
    path: .png, .svg or .pdf. Raises: ValueError for another suffix.
    """
    law = prediction.law
    sizes = np.geomspace(min(size for size, _ in points), target, 200)
    caption = (
        f"L(N) = {law.irreducible:.3f} + {law.scale:.3g} N^-{law.exponent:.3f}; N without "
        f"embeddings.\nBar: the {prediction.confidence:.0%} interval of the model predicted. "
        "Grey: other learning rates."
    )
    with figure_style():
        figure = new_figure(6.4, 4.6, title=title, caption=caption)
        axes = figure.add_subplot()
        set_log_scale(axes.xaxis)
        curve = [law.loss(size) for size in sizes]
        axes.plot(sizes / 1e6, curve, color=GREY, linewidth=1, label="law")
        axes.plot(*_in_millions(others), "o", color=GREY, alpha=0.4, markersize=4)
        axes.plot(*_in_millions(points), "o", color=BLUE, markersize=6, label="trained")
        reach = [[prediction.loss - prediction.low], [prediction.high - prediction.loss]]
        axes.errorbar(
            [target],
            [prediction.loss],
            reach,
            fmt="D",
            color=VERMILION,
            capsize=4,
            label="predicted",
        )
        axes.set_xlabel("million parameters")
        axes.set_ylabel("held-out loss, nats a token")
        axes.legend()
        save_figure(figure, path)


def _in_millions(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [size / 1e6 for size, _ in points], [loss for _, loss in points]
