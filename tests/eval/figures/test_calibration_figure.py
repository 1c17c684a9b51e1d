"""The picture of a calibration: points, intervals, the chosen k, refusals."""

import math
from dataclasses import replace

import pytest

from anchored.eval.figures import calibration
from anchored.eval.figures.calibration import CalibrationCurve, CurvePoint, plot_calibration

POINTS = [
    CurvePoint(k=0.5, value=1.0, low=0.99, high=1.0),
    CurvePoint(k=2.0, value=0.8, low=-math.inf, high=0.9),
    CurvePoint(k=8.0, value=0.3, low=0.1, high=0.5),
]
CURVE = CalibrationCurve(
    points=POINTS, chosen=2.0, target=0.75, figure_name="NCR", fresh=replace(POINTS[1], value=0.7)
)


def test_every_k_has_a_point_and_the_chosen_one_a_circle(tmp_path, monkeypatch):
    drawn = []
    save = calibration.save_figure
    monkeypatch.setattr(
        calibration, "save_figure", lambda figure, path: drawn.append(figure) or save(figure, path)
    )
    plot_calibration(CURVE, tmp_path / "c.png", caption="Bars: intervals.")
    ((axes,),) = (figure.axes for figure in drawn)
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert [[0.5, 1.0], [2.0, 0.8], [8.0, 0.3]] in lines and [[2.0, 0.8]] in lines
    assert axes.get_xscale() == "log" and axes.get_ylabel() == "NCR"
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_chosen_k_that_was_not_measured_is_refused(tmp_path):
    with pytest.raises(ValueError, match="the chosen k, 3, is none of the measured ones"):
        plot_calibration(replace(CURVE, chosen=3.0), tmp_path / "c.png", caption="")
