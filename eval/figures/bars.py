"""Scores of several models on several benchmarks, side by side."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from .style import COLOURS, figure_style, new_figure, save_figure

HATCHES = ("", "//", "..", "xx")
"""Of the second round of colours and so on."""
GROUP_WIDTH = 0.8


def plot_scores(
    scores: Mapping[str, Sequence[tuple[float, float]]],
    benchmarks: Sequence[str],
    path: Path,
    *,
    title: str,
) -> None:
    """A group of bars a benchmark, a bar a model.

    scores: by model, in the order of the benchmarks: share and standard error; nan draws nothing.
    path: .png, .svg or .pdf.
    Raises: ValueError without models or benchmarks, or for another suffix.
    """
    if not scores or not benchmarks:
        raise ValueError("a picture of scores needs a model and a benchmark at least")
    with figure_style():
        width = max(6.4, 0.35 * len(benchmarks) * (1 + len(scores)))
        caption = "Each benchmark by its best variant. Bars: one standard error."
        figure = new_figure(width, 4.2, title=title, caption=caption)
        axes = figure.add_subplot()
        bar = GROUP_WIDTH / len(scores)
        for number, (model, own) in enumerate(scores.items()):
            offset = (number + 0.5) * bar - GROUP_WIDTH / 2
            axes.bar(
                [place + offset for place in range(len(benchmarks))],
                [value for value, _ in own],
                bar,
                yerr=[0.0 if math.isnan(error) else error for _, error in own],
                label=model,
                color=COLOURS[number % len(COLOURS)],
                hatch=HATCHES[number // len(COLOURS) % len(HATCHES)],
                error_kw={"elinewidth": 0.8},
            )
        axes.set_xticks(range(len(benchmarks)), benchmarks, rotation=30, ha="right")
        axes.set_ylabel("score")
        figure.legend(loc="outside lower center", ncols=3, handletextpad=0.4)
        save_figure(figure, path)
