"""The picture of a power law: its models, its curve, and the interval of the one predicted."""

import numpy as np
import pytest

from anchored.eval.figures import power_law
from anchored.eval.figures.power_law import plot_power_law
from anchored.eval.power_law import PowerLaw, predict_loss

LAW = PowerLaw(1.7, 400.0, 0.34)
SIZES = [20e6, 60e6, 190e6, 600e6]
POINTS = [(size, LAW.loss(size) + 0.01 * (-1) ** place) for place, size in enumerate(SIZES)]


def test_the_models_lie_on_the_curve_that_ends_in_the_interval(tmp_path, monkeypatch):
    drawn = []
    save = power_law.save_figure
    monkeypatch.setattr(
        power_law, "save_figure", lambda figure, path: drawn.append(figure) or save(figure, path)
    )
    prediction = predict_loss(*zip(*POINTS, strict=True), 1.2e9)
    others = [(20e6, 4.0)]
    plot_power_law(POINTS, prediction, 1.2e9, tmp_path / "l.png", others=others, title="a title")
    ((axes,),) = (figure.axes for figure in drawn)
    lines = [line.get_xydata() for line in axes.get_lines()]
    assert lines[0][-1] == pytest.approx((1200.0, prediction.loss))
    assert [[20.0, 4.0]] in [line.tolist() for line in lines]
    assert any(np.allclose(line, np.array(POINTS) / (1e6, 1)) for line in lines if len(line) == 4)
    (bar,) = (axes.collections[0].get_segments(),)
    assert sorted(y for _, y in bar[0]) == pytest.approx([prediction.low, prediction.high])
    assert (tmp_path / "l.png").read_bytes().startswith(b"\x89PNG")
