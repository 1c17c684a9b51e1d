"""Pictures: the data that is drawn."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from anchored import Anchored, Decoder, Pathwise
from anchored.eval.figures.curves import BudgetTrajectory, plot_budget_trajectories
from anchored.eval.figures.distributions import Series, density, histogram, plot_series, tail
from anchored.eval.figures.style import method_looks
from anchored.eval.figures.trade_off import (
    NCR,
    Scale,
    TradeOffPoint,
    front_shares,
    pareto_front,
    plot_trade_off,
)

BITS = Scale.bits_per_byte("held-out extra")
LABELS = {"title": "T", "x_label": "x", "y_label": "y"}
TRAJECTORY = BudgetTrajectory(
    label="k=0.5", k=0.5, debt=0.8, bound=1.2, spends=[0, 0.2, 0.5, 0.4], accepted=[1, 0, 1, 0]
)


def point(label, protection, utility, method="m", look=("black", "^"), **more):
    figures = {"protection": protection, "utility": utility, **more}
    return TradeOffPoint(label=label, method=method, look=look, **figures)


def plot_points(points, path):
    """One panel of them, fewer bits per byte being better."""
    plot_trade_off({"": points}, path, title="T", utility=BITS)


@pytest.fixture
def drawn(monkeypatch):
    """The axes of each figure that was saved."""
    axes, save = [], Figure.savefig

    def keep(figure, *words, **options):
        axes.extend(figure.axes)
        save(figure, *words, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return axes


def line_of(axes, label):
    (line,) = (line for line in axes.get_lines() if line.get_label() == label)
    return line


@pytest.mark.parametrize(
    "rule",
    [Pathwise(0.5, 6.0), Anchored(k=0.5, budget="fixed"), Anchored(K=3, budget="global")],
    ids=["bank", "fixed", "global"],
)
def test_the_allowance_of_a_trajectory_is_that_of_its_ledger(pair, rule, tmp_path):
    (result,) = Decoder(pair, rule).generate("the keeper of", max_new_tokens=6, seed=1)
    shown, steps = BudgetTrajectory.of("a", result.ledger), result.ledger.steps
    spent = itertools.accumulate((step.spend for step in steps), initial=0.0)
    allowed = [before + step.budget for before, step in zip(spent, steps, strict=False)]
    assert shown.allowed == pytest.approx(allowed, abs=1e-6)
    if isinstance(rule, Pathwise):  # the bank pays the debt first
        paid = [min(6.0 + 0.5 * step, result.ledger.header.debt) for step in range(1, 7)]
        assert shown.accrued == pytest.approx(np.add(shown.allowed, paid).tolist())
        plot_budget_trajectories([shown], tmp_path / "a.svg")
        assert "A bank of 6 is full at the start" in (tmp_path / "a.svg").read_text()


def test_budget_panel_shows_debt_spend_allowance_bound_and_rejections(drawn, tmp_path):
    plot_budget_trajectories([TRAJECTORY], tmp_path / "budget.svg", symbol="byte")
    (axes,) = drawn
    assert "with every byte" in axes.get_figure(root=True).get_supxlabel()
    (debt,) = axes.collections  # lies between what accrues and the allowance
    vertices = debt.get_paths()[0].vertices.tolist()
    edges = [(1, 0.5), (4, 2.0), (1, 0.0), (4, 1.2)]
    assert all([x, pytest.approx(y)] in vertices for x, y in edges)
    assert line_of(axes, "spent").get_ydata() == pytest.approx([0, 0.2, 0.7, 1.1])
    assert line_of(axes, "allowance").get_ydata() == pytest.approx([0, 0.2, 0.7, 1.2])
    assert list(line_of(axes, "bound").get_ydata()) == [1.2, 1.2]
    assert list(line_of(axes, "risky model intervened").get_xdata()) == [2, 4]


@pytest.mark.parametrize(
    ("figures", "front"),
    [
        ([(0.0, 2.0), (1.0, 3.0)], "ab"),  # neither betters the other
        ([(0.5, 2.0), (1.0, 2.0), (1.0, 2.0)], "bc"),  # equal points are all kept
        ([(math.nan, 1.0), (0.5, math.inf), (0.1, 2.0)], "c"),
    ],
)
def test_the_front_is_what_no_other_point_betters(figures, front):
    points = [point(name, *each) for name, each in zip("abcd", figures, strict=False)]
    assert "".join(each.label for each in pareto_front(points, NCR, BITS)) == front


def test_a_ring_is_as_dark_as_its_setting_is_often_on_the_front(drawn, tmp_path):
    """One of four resamples moves a down; b and c are each beaten in some."""
    resamples = {
        "a": ([0.9, 0.9, 0.9, 0.2], [2.0, 2.0, 2.0, 2.0]),
        "b": ([0.5, 0.5, 1.0, 0.5], [2.5, 1.5, 1.5, 1.5]),
        "c": ([0.1, math.nan, 0.1, 0.1], [1.0, 1.0, 2.5, 2.5]),
    }
    points = [
        point(name, ncr[0], bits[0], resampled=(np.array(ncr), np.array(bits)))
        for name, (ncr, bits) in resamples.items()
    ]
    points.append(point("d", 2.0, 0.0))
    shares = {each.label: share for each, share in front_shares(points, NCR, BITS).items()}
    assert shares == {"a": 0.5, "b": 0.75, "c": 0.25}
    plot_points(points, tmp_path / "rings.svg")
    rings = [line for line in drawn[0].get_lines() if line.get_markersize() == 12]
    assert [ring.get_alpha() for ring in rings] == [0.5, 0.75, 0.25, 1.0]
    assert "A darker ring" in drawn[0].get_figure(root=True).get_supxlabel()


def test_methods_have_a_look_each_the_same_in_all_panels(drawn, tmp_path):
    roles = {"Anchored": "anchored", **dict.fromkeys(("NoOpt", "NoDebt", "None"), "baseline")}
    looks = method_looks(roles)

    def of(label, ncr, bits, method):
        return point(label, ncr, bits, method, looks[method])

    spread = {"protection_std": 0.1, "num_seeds": 3, "num_metrics": 4}
    ours = [of("k=1", 0.9, 2.2, "Anchored"), replace(of("k=9", 0.4, 2.0, "Anchored"), **spread)]
    gone = of("gone", math.nan, 2.0, "None")
    panels = {
        "One": [*ours, of("", 0.8, 2.4, "NoOpt"), gone],
        "Two": [*ours, of("n=1", 0.3, 2.3, "NoDebt"), of("n=2", 0.5, 2.1, "NoOpt")],
    }
    plot_trade_off(panels, tmp_path / "methods.svg", title="Methods", utility=BITS)
    one, two = drawn
    assert line_of(one, "Anchored: k=1, 9").get_xydata().tolist() == [[0.9, 2.2], [0.4, 2.0]]
    assert line_of(one, "Pareto front").get_xydata().tolist() == [[0.4, 2.0], [0.9, 2.2]]
    for name, method in (("NoOpt: n=2", "NoOpt"), ("NoDebt: n=1", "NoDebt")):
        line = line_of(two, name)
        assert (line.get_color(), line.get_marker()) == looks[method]
    assert len(set(looks.values())) == 4
    (legend,) = one.get_figure(root=False).legends
    assert len(legend.get_texts()) == 4  # a method that both panels have is named once
    (left, right), (bottom, top) = one.get_xlim(), one.get_ylim()
    assert left < 0.75 < right and bottom > top
    assert "over 3 seeds" in one.get_figure(root=True).get_supxlabel()
    assert one.get_xlabel().endswith("reduction over 4 or 6 of 6 metrics (1 = safe model)")


def test_the_tail_counts_what_is_at_or_above_and_densities_are_of_mass_one():
    assert tail([1, 2, 2, 4], 2) == ([2, 4], [0.75, 0.25])
    assert histogram([1, 2, 2, 4], [0, 2, 5], 8) == ([0, 2, 5], [0.125, 0.375, 0])
    for values in ([1.0, 2.0, 2.5], [0.0, 0.0]):
        points, densities = density(values)
        assert np.trapezoid(densities, points) == pytest.approx(1, abs=0.01)


def test_curves_of_a_method_have_its_color_in_shades_and_one_alone_has_it_whole(drawn, tmp_path):
    colors = {"p_s": "#009E73", "k=1": "#0072B2", "k=2": "#0072B2"}
    panels = {"": {name: Series([0.0, 1.0], [0.5, 0.25]) for name in colors}}
    plot_series(panels, tmp_path / "s.svg", colors=colors, **LABELS)
    safe, first, second = (line_of(drawn[0], name) for name in colors)
    assert safe.get_color() == colors["p_s"].lower() and second.get_color() == "#0072b2"
    assert first.get_color() != second.get_color()
    assert first.get_linestyle() != second.get_linestyle()
