"""The picture of several models on several benchmarks."""

import math

import pytest

from anchored.eval.figures import bars
from anchored.eval.figures.bars import plot_scores

SCORES = {"ours": [(0.5, 0.02), (0.25, math.nan)], "theirs": [(0.4, 0.02), (math.nan, math.nan)]}


def test_every_model_has_a_bar_at_every_benchmark(tmp_path, monkeypatch):
    figures = []
    save = bars.save_figure
    monkeypatch.setattr(bars, "save_figure", lambda f, path: (figures.append(f), save(f, path)))
    for suffix in (".png", ".svg"):
        plot_scores(SCORES, ["A", "B"], tmp_path / f"scores{suffix}", title="Two models")
        assert (tmp_path / f"scores{suffix}").stat().st_size > 2000
    (axes,) = figures[0].get_axes()
    heights = [[bar.get_height() for bar in own.patches] for own in axes.containers[1::2]]
    assert heights == [[0.5, 0.25], [0.4, pytest.approx(math.nan, nan_ok=True)]]
    places = sorted(bar.get_x() for bar in axes.patches)
    assert len(set(places)) == 4 and [t.get_text() for t in axes.get_xticklabels()] == ["A", "B"]


@pytest.mark.parametrize(("scores", "benchmarks"), [({}, ["A"]), (SCORES, [])])
def test_nothing_to_draw_is_refused(tmp_path, scores, benchmarks):
    with pytest.raises(ValueError, match="needs a model and a benchmark"):
        plot_scores(scores, benchmarks, tmp_path / "none.png", title="None")
