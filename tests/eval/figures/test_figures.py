"""Pictures: what is drawn where, file formats, and refusals."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from anchored import Anchored, Decoder, RiskyOnly, with_divergences
from anchored.eval.figures import curves, distributions, intervals, trade_off
from anchored.eval.figures.curves import (
    BudgetTrajectory,
    plot_budget_trajectories,
    plot_divergences,
)
from anchored.eval.figures.distributions import density, tail
from anchored.eval.figures.intervals import (
    CalibrationCurve,
    CurvePoint,
    plot_calibration,
    plot_scores,
)
from anchored.eval.figures.trade_off import (
    NCR,
    Scale,
    TradeOffPoint,
    front_shares,
    pareto_front,
    plot_trade_off,
)

POINTS = [
    TradeOffPoint(label="p_s", role="safe", protection=1.0, utility=2.4),
    TradeOffPoint(
        label="k=0.1", role="anchored", protection=0.99, utility=2.38, protection_std=0.02
    ),
    TradeOffPoint(label="k=2", role="anchored", protection=0.6, utility=2.1),
    TradeOffPoint(label="p_r", role="risky", protection=0.0, utility=2.0),
]
TRAJECTORY = BudgetTrajectory(
    label="k=0.5", k=0.5, debt=0.8, bound=1.2, spends=[0, 0.2, 0.5, 0.4], accepted=[1, 0, 1, 0]
)


def plot_points(points, path):
    """One panel of them, fewer bits per byte being better."""
    utility = Scale.bits_per_byte("held-out extra")
    plot_trade_off({"": points} if points else {}, path, title="T", utility=utility, num_seeds=3)


@pytest.fixture
def drawn(monkeypatch):
    """The axes of each figure that was saved."""
    axes = []

    def keep(figure, path):
        axes.extend(figure.axes)
        save(figure, path)

    save = trade_off.save_figure
    for module in (curves, trade_off, intervals, distributions):
        monkeypatch.setattr(module, "save_figure", keep)
    return axes


def line_of(axes, label):
    (line,) = (line for line in axes.get_lines() if line.get_label() == label)
    return line


@pytest.mark.parametrize(
    ("counts", "scope"),
    [((6, 6), ""), ((4, 6), " over 4 or 6 of 6 metrics")],
)
def test_trade_off_says_over_how_many_metrics_its_ncr_are(drawn, tmp_path, counts, scope):
    points = [replace(POINTS[-i], num_metrics=n) for i, n in enumerate(counts, 1)]  # without bars
    plot_points(points, tmp_path / "trade_off.svg")
    assert drawn[0].get_xlabel() == f"normalized copying reduction{scope} (1 = safe model)"
    assert "standard deviation" not in drawn[0].get_figure(root=True).get_supxlabel()


def point(label, ncr, bits, method="m", role="baseline"):
    return TradeOffPoint(label=label, role=role, protection=ncr, utility=bits, method=method)


@pytest.mark.parametrize(
    ("figures", "front"),
    [
        ([(0.0, 2.0), (1.0, 3.0)], "ab"),  # neither betters the other
        ([(0.5, 2.0), (1.0, 2.0)], "b"),  # one figure is as good, the other better
        ([(0.5, 2.0), (0.5, 1.9)], "b"),
        ([(0.5, 2.0), (0.5, 2.0)], "ab"),  # equal points are all kept
        ([(0.2, 2.5), (0.9, 2.1), (0.8, 2.2), (1.1, 2.6)], "bd"),
        ([(math.nan, 1.0), (0.5, math.inf), (0.1, 2.0)], "c"),
    ],
)
def test_the_front_is_what_no_other_point_betters(figures, front):
    points = [point(name, *each) for name, each in zip("abcd", figures, strict=False)]
    found = pareto_front(points, NCR, Scale.bits_per_byte(""))
    assert "".join(each.label for each in found) == front


def test_a_ring_is_as_dark_as_its_setting_is_often_on_the_front(drawn, tmp_path):
    """One of four resamples moves a down; b and c are each beaten in some."""
    resamples = {
        "a": ([0.9, 0.9, 0.9, 0.2], [2.0, 2.0, 2.0, 2.0]),
        "b": ([0.5, 0.5, 1.0, 0.5], [2.5, 1.5, 1.5, 1.5]),
        "c": ([0.1, math.nan, 0.1, 0.1], [1.0, 1.0, 2.5, 2.5]),
    }
    points = [
        replace(point(name, ncr[0], bits[0]), resampled=(np.array(ncr), np.array(bits)))
        for name, (ncr, bits) in resamples.items()
    ]
    shares = front_shares([*points, point("d", 2.0, 0.0)], NCR, Scale.bits_per_byte(""))
    assert {own.label: share for own, share in shares.items()} == {"a": 0.5, "b": 0.75, "c": 0.25}
    plot_points([*points, point("d", 2.0, 0.0)], tmp_path / "rings.svg")
    rings = [line for line in drawn[0].get_lines() if line.get_markersize() == 12]
    assert [ring.get_alpha() for ring in rings] == [0.5, 0.75, 0.25, 1.0]
    assert "the darker" in drawn[0].get_figure(root=True).get_supxlabel()


def test_methods_have_a_look_each_the_same_in_all_panels(drawn, tmp_path):
    ours = [point("k=1", 0.9, 2.2, "Anchored", "anchored"), point("k=9", 0.4, 2.0, "Anchored")]
    ours[1] = replace(ours[1], role="anchored", protection_std=0.1)
    panels = {
        "One": [*ours, point("", 0.8, 2.4, "NoOpt"), point("gone", math.nan, 2.0, "Nothing")],
        "Two": [*ours, point("n=1", 0.3, 2.3, "NoDebt"), point("n=2", 0.5, 2.1, "NoOpt")],
    }
    options = {"title": "Methods", "utility": Scale.bits_per_byte("held-out extra"), "num_seeds": 3}
    plot_trade_off(panels, tmp_path / "methods.svg", **options)
    one, two = drawn
    line = line_of(one, "Anchored: k=1, 9")
    assert line.get_xydata().tolist() == [[0.9, 2.2], [0.4, 2.0]] and line.get_linestyle() == "-"
    assert line_of(one, "Pareto front").get_xydata().tolist() == [[0.4, 2.0], [0.9, 2.2]]
    looks = [(line.get_color(), line.get_marker()) for line in one.get_lines()]
    again = line_of(two, "NoOpt: n=2")
    assert (again.get_color(), again.get_marker()) in looks
    assert line_of(two, "NoDebt: n=1").get_color() != again.get_color()
    assert {"k=1", "k=9"} <= {text.get_text() for text in one.texts} and one.get_title("left")
    (legend,) = one.get_figure(root=False).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["Anchored: k=1, 9", "NoOpt: n=2", "NoDebt: n=1", "Pareto front"]
    (left, right), (bottom, top) = one.get_xlim(), one.get_ylim()
    span = one.patches[0].get_extents().transformed(one.transData.inverted())
    assert (span.x0, span.x1) == pytest.approx((0.75, right)) and left < 0.75 and bottom > top
    caption = one.get_figure(root=True).get_supxlabel()
    assert "over 3 seeds" in caption and "Pareto front" in caption


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (["k=0.1", "k=2"], "Anchored: k=0.1, 2"),
        (["a=1, b=2", "a=1, b=3"], "Anchored: a=1, b=2, a=1, b=3"),
        (["n=1", "m=2"], "Anchored: n=1, m=2"),
        (["", ""], "Anchored"),
        ([f"k={n}" for n in range(20)], "Anchored: k=0, 1, 2, 3, 4, 5, 6, 7, 8,\n9, 10, 11, 12, "),
    ],
)
def test_the_legend_names_the_settings_of_a_method_in_their_order(labels, name):
    points = [point(label, 0.5, 2.0, "Anchored", "anchored") for label in labels]
    assert trade_off._legend_name(points).startswith(name)


def test_budget_panel_shows_debt_spend_allowance_bound_and_rejections(drawn, tmp_path):
    plot_budget_trajectories([TRAJECTORY], tmp_path / "budget.svg", symbol="byte")
    (axes,) = drawn
    whole = axes.get_figure(root=True)
    assert whole.get_suptitle() and "with every byte" in whole.get_supxlabel()
    (debt,) = axes.collections  # lies between what accrues and the allowance
    accrued, allowance = [(1, 0.5), (4, 2.0)], [(1, 0.0), (4, 1.2)]
    assert debt.get_label() == "debt" and "debt 0.8, bound 1.2 nats" in axes.get_title()
    vertices = debt.get_paths()[0].vertices.tolist()
    assert all([x, pytest.approx(y)] in vertices for x, y in accrued + allowance)
    assert line_of(axes, "spent").get_ydata() == pytest.approx([0, 0.2, 0.7, 1.1])
    assert line_of(axes, "allowance").get_ydata() == pytest.approx([0, 0.2, 0.7, 1.2])
    assert list(line_of(axes, "bound").get_ydata()) == [1.2, 1.2]
    assert list(line_of(axes, "risky model intervened").get_xdata()) == [2, 4]


@pytest.mark.parametrize("settings", [{"budget": "fixed", "k": 0.5}, {"budget": "global", "K": 3}])
def test_the_allowance_of_a_trajectory_is_that_of_its_ledger(pair, settings):
    (result,) = Decoder(pair, Anchored(**settings)).generate("the keeper of", max_new_tokens=6)
    shown = BudgetTrajectory.of("", result.ledger)
    spent = list(itertools.accumulate((s.spend for s in result.ledger.steps), initial=0.0))
    allowed = [before + s.budget for before, s in zip(spent, result.ledger.steps, strict=False)]
    assert shown.allowed == pytest.approx(allowed, abs=1e-6)


def test_a_text_without_a_bound_has_no_budget_to_draw(pair):
    (result,) = Decoder(pair, RiskyOnly()).generate("the keeper of", max_new_tokens=2)
    with pytest.raises(ValueError, match="text: risky_only has no bound"):
        BudgetTrajectory.of("text", result.ledger)


@pytest.mark.parametrize("plot", [plot_points, plot_budget_trajectories])
def test_a_picture_of_nothing_is_refused(plot, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        plot([], tmp_path / "nothing.png")


def test_unknown_file_types_and_unequal_steps_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf, got .*budget\.jpg"):
        plot_budget_trajectories([TRAJECTORY], tmp_path / "budget.jpg")
    with pytest.raises(ValueError, match="one value per step, got 2 and 1"):
        BudgetTrajectory(label="", k=1, debt=0, bound=1, spends=[0, math.inf], accepted=[True])


def test_divergences_of_ledgers_are_drawn_step_by_step_as_their_means(drawn, pair, tmp_path):
    decoder = Decoder(pair, Anchored(k=0.5))
    ledgers = [
        decoder.generate("the keeper of", max_new_tokens=count, top_k=9)[0].ledger
        for count in (5, 3)
    ]
    with pytest.raises(ValueError, match="holds no divergences"):
        plot_divergences(ledgers, tmp_path / "none.png")
    longer, shorter = (with_divergences(ledger, pair) for ledger in ledgers)
    plot_divergences([longer], tmp_path / "one.svg")
    distances, axes = drawn
    spends, budgets = (line_of(axes, name) for name in ("spend: KL(p* || p_s)", "allowance"))
    assert spends.get_ydata() == pytest.approx([step.spend for step in longer.steps])
    assert budgets.get_ydata() == pytest.approx([step.budget for step in longer.steps])
    finite = [math.nan if math.isinf(s.kl_risky_safe) else s.kl_risky_safe for s in longer.steps]
    risky_safe = line_of(distances, "models apart: KL(p_r || p_s)").get_ydata()
    assert risky_safe == pytest.approx(finite, nan_ok=True)
    plot_divergences([longer, shorter], tmp_path / "two.svg")
    means = line_of(drawn[1], "spend: KL(p* || p_s)").get_ydata()
    both = [(a.spend + b.spend) / 2 for a, b in zip(longer.steps, shorter.steps, strict=False)]
    assert means == pytest.approx([*both, *(step.spend for step in longer.steps[3:])])


def test_the_tail_counts_what_is_at_or_above_and_densities_are_of_mass_one():
    assert tail([1, 2, 2, 4], 2) == ([2, 4], [0.75, 0.25])
    for values in ([1.0, 2.0, 2.5], [3.0], [0.0, 0.0]):
        points, densities = density(values)
        assert np.trapezoid(densities, points) == pytest.approx(1, abs=0.01)


def test_every_k_of_a_calibration_has_a_point_and_the_chosen_one_a_circle(drawn, tmp_path):
    points = [
        CurvePoint(k=0.5, value=1.0, low=0.99, high=1.0),
        CurvePoint(k=2.0, value=0.8, low=-math.inf, high=0.9),
        CurvePoint(k=8.0, value=0.3, low=0.1, high=0.5),
    ]
    fresh = replace(points[1], value=0.7)
    curve = CalibrationCurve(points=points, chosen=2.0, target=0.75, figure_name="NCR", fresh=fresh)
    plot_calibration(curve, tmp_path / "c.svg", caption="Bars: intervals.")
    (axes,) = drawn
    lines = [line.get_xydata().tolist() for line in axes.get_lines()]
    assert [[0.5, 1.0], [2.0, 0.8], [8.0, 0.3]] in lines and [[2.0, 0.8]] in lines
    assert axes.get_xscale() == "log" and axes.get_ylabel() == "NCR"
    with pytest.raises(ValueError, match="the chosen k, 3, is none of the measured ones"):
        plot_calibration(replace(curve, chosen=3.0), tmp_path / "c.svg", caption="")


def test_every_model_has_a_bar_at_every_benchmark(drawn, tmp_path):
    scores = {
        "ours": [(0.5, 0.02), (0.25, math.nan)],
        "theirs": [(0.4, 0.02), (math.nan, math.nan)],
    }
    plot_scores(scores, ["A", "B"], tmp_path / "scores.svg", title="Two models")
    (axes,) = drawn
    bars = axes.containers[1::2]  # behind each, the errors of its figures
    heights = [[bar.get_height() for bar in model.patches] for model in bars]
    assert heights == [[0.5, 0.25], [0.4, pytest.approx(math.nan, nan_ok=True)]]
    assert len({bar.get_x() for bar in axes.patches}) == 4
    assert [label.get_text() for label in axes.get_xticklabels()] == ["A", "B"]
    for some, benchmarks in (({}, ["A"]), (scores, [])):
        with pytest.raises(ValueError, match="needs a model and a benchmark"):
            plot_scores(some, benchmarks, tmp_path / "none.svg", title="None")
