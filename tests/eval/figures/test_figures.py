"""Pictures: what is drawn where, file formats, and refusals."""

import itertools
import math
from dataclasses import replace

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from anchored import Anchored, Decoder, RiskyOnly, with_divergences
from anchored.eval.figures import curves, series, trade_off
from anchored.eval.figures.curves import (
    BudgetTrajectory,
    LossCurve,
    plot_budget_trajectories,
    plot_divergences,
    plot_loss_curves,
)
from anchored.eval.figures.series import Series, plot_series
from anchored.eval.figures.style import label_points
from anchored.eval.figures.trade_off import (
    NCR,
    Scale,
    TradeOffPoint,
    pareto_front,
    plot_methods,
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
CURVE = LossCurve(label="safe", role="safe", steps=[0, 10, 20], losses_nats=[5.0, 3.0, 2.5])


@pytest.fixture
def drawn(monkeypatch):
    """The axes of each figure that was saved."""
    axes = []
    save = trade_off.save_figure

    def keep_and_save(figure, path):
        axes.extend(figure.axes)
        save(figure, path)

    for module in (curves, trade_off):
        monkeypatch.setattr(module, "save_figure", keep_and_save)
    return axes


def line_of(axes, label):
    (line,) = (line for line in axes.get_lines() if line.get_label() == label)
    return line


def test_trade_off_joins_the_points_of_k_and_puts_better_up_and_right(drawn, tmp_path):
    plot_trade_off(POINTS, tmp_path / "trade_off.png", num_seeds=3)
    (axes,) = drawn
    assert line_of(axes, "Anchored Decoding").get_xydata().tolist() == [[0.99, 2.38], [0.6, 2.1]]
    assert line_of(axes, "risky model").get_linestyle() == "None"
    (bottom, top), (left, right) = axes.get_ylim(), axes.get_xlim()
    assert bottom > top and left < right  # fewer bits per byte are higher up
    assert {"p_s", "k=0.1", "k=2", "p_r"} <= {text.get_text() for text in axes.texts}
    figure = axes.get_figure(root=True)
    assert "k nats a token" in figure.get_suptitle()
    assert "standard deviation over 3 seeds" in figure.get_supxlabel()


@pytest.mark.parametrize(
    ("counts", "scope"),
    [((6, 6), ""), ((4, 4), " over 4 of 6 metrics"), ((4, 6), " over 4 or 6 of 6 metrics")],
)
def test_trade_off_says_over_how_many_metrics_its_ncr_are(drawn, tmp_path, counts, scope):
    points = [replace(POINTS[-i], num_metrics=n) for i, n in enumerate(counts, 1)]  # without bars
    plot_trade_off(points, tmp_path / "trade_off.png", num_seeds=3)
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


def test_a_front_of_figures_that_should_be_small_and_large():
    points = [point("a", 0.1, 4.0), point("b", 0.2, 4.5), point("c", 0.3, 4.2)]
    found = pareto_front(points, Scale("copied", lower_is_better=True), Scale("fluency"))
    assert "".join(each.label for each in found) == "ab"


def test_methods_have_a_look_each_the_same_in_all_panels(drawn, tmp_path):
    ours = [point("k=1", 0.9, 2.2, "Anchored", "anchored"), point("k=9", 0.4, 2.0, "Anchored")]
    ours[1] = replace(ours[1], role="anchored", protection_std=0.1)
    panels = {
        "One": [*ours, point("", 0.8, 2.4, "NoOpt"), point("gone", math.nan, 2.0, "Nothing")],
        "Two": [*ours, point("n=1", 0.3, 2.3, "NoDebt"), point("n=2", 0.5, 2.1, "NoOpt")],
    }
    options = {"title": "Methods", "utility": Scale.bits_per_byte("held-out extra"), "num_seeds": 3}
    for name in ("first.svg", "second.svg"):
        plot_methods(panels, tmp_path / name, **options)
    assert (tmp_path / "first.svg").read_bytes() == (tmp_path / "second.svg").read_bytes()
    one, two = drawn[:2]
    assert line_of(one, "Anchored").get_xydata().tolist() == [[0.9, 2.2], [0.4, 2.0]]
    assert line_of(one, "Pareto front").get_xydata().tolist() == [[0.4, 2.0], [0.9, 2.2]]
    looks = [(line.get_color(), line.get_marker()) for line in one.get_lines()]
    again = line_of(two, "NoOpt")
    assert (again.get_color(), again.get_marker()) in looks
    assert line_of(two, "NoDebt").get_color() != again.get_color()
    assert {"k=1", "k=9"} <= {text.get_text() for text in one.texts} and one.get_title("left")
    (left, right), (bottom, top) = one.get_xlim(), one.get_ylim()
    span = one.patches[0].get_extents().transformed(one.transData.inverted())
    assert (span.x0, span.x1) == pytest.approx((0.75, right)) and left < 0.75 and bottom > top
    caption = one.get_figure(root=True).get_supxlabel()
    assert "over 3 seeds" in caption and "Pareto front" in caption


@pytest.mark.parametrize(
    ("plot", "figures", "suffix", "magic"),
    [
        (plot_trade_off, POINTS, ".svg", b"<?xml"),
        (plot_loss_curves, [CURVE], ".png", b"\x89PNG"),
        (plot_loss_curves, [CURVE], ".pdf", b"%PDF"),
    ],
)
def test_every_format_is_written_twice_with_the_same_bytes(tmp_path, plot, figures, suffix, magic):
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    plot(figures, first)
    plot(figures, second)
    assert first.read_bytes().startswith(magic)
    assert first.read_bytes() == second.read_bytes()


def test_pictures_have_a_title_and_name_what_k_is_given_for(drawn, tmp_path):
    plot_trade_off(POINTS, tmp_path / "trade_off.png", symbol="byte")
    plot_budget_trajectories([TRAJECTORY], tmp_path / "budgets.png", symbol="byte")
    trade_off, budgets = (axes.get_figure(root=True) for axes in drawn)
    assert "k nats a byte" in trade_off.get_suptitle()
    assert budgets.get_suptitle() and "with every byte" in budgets.get_supxlabel()


def test_budget_panel_shows_debt_spend_allowance_bound_and_rejections(drawn, tmp_path):
    plot_budget_trajectories([TRAJECTORY], tmp_path / "budget.png")
    (axes,) = drawn
    (debt,) = axes.collections  # lies between what accrues and the allowance
    accrued, allowance = [(1, 0.5), (4, 2.0)], [(1, 0.0), (4, 1.2)]
    assert debt.get_label() == "debt" and "debt 0.8, bound 1.2 nats" in axes.get_title()
    vertices = debt.get_paths()[0].vertices.tolist()
    assert all([x, pytest.approx(y)] in vertices for x, y in accrued + allowance)
    assert line_of(axes, "spent").get_ydata() == pytest.approx([0, 0.2, 0.7, 1.1])
    assert line_of(axes, "allowance").get_ydata() == pytest.approx([0, 0.2, 0.7, 1.2])
    assert list(line_of(axes, "bound").get_ydata()) == [1.2, 1.2]
    assert list(line_of(axes, "risky model intervened").get_xdata()) == [2, 4]


def test_other_schedules_are_drawn_as_they_are(drawn, tmp_path):
    fixed, other = (replace(TRAJECTORY, schedule=name) for name in ("fixed", "global"))
    plot_budget_trajectories([fixed, other], tmp_path / "budget.png")
    # Fixed: k above what was spent before. Global: all of the bound from the first token on.
    assert line_of(drawn[0], "allowance").get_ydata() == pytest.approx([0.5, 0.5, 0.7, 1.2])
    assert line_of(drawn[1], "allowance").get_ydata() == pytest.approx([1.2] * 4)
    caption = drawn[0].get_figure(root=True).get_supxlabel()
    assert "Fixed: k nats" in caption and "Global: all" in caption and "accrue" not in caption


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


@pytest.mark.parametrize(("count", "num_panels"), [(1, 1), (4, 4), (5, 6)])
def test_each_generation_has_a_panel_be_it_without_tokens(drawn, tmp_path, count, num_panels):
    empty = BudgetTrajectory(label="k=0", k=0, debt=0, bound=0, spends=[], accepted=[])
    plot_budget_trajectories([TRAJECTORY] * (count - 1) + [empty], tmp_path / "budget.svg")
    assert len(drawn) == num_panels
    assert sum(axes.axison for axes in drawn) == count


def test_losses_are_drawn_raw_and_smooth_in_the_colour_of_their_model(drawn, tmp_path):
    later = replace(CURVE, label="safe, later")
    plot_loss_curves([CURVE, later, replace(CURVE, role="risky", label="r")], tmp_path / "loss.png")
    assert [list(line.get_ydata()) for line in drawn[0].get_lines()] == [[5.0, 3.0, 2.5]] * 6
    first, later, risky = (line_of(drawn[0], label) for label in ("safe", "safe, later", "r"))
    assert first.get_color() == later.get_color() != risky.get_color()
    assert first.get_linestyle() != later.get_linestyle()


def test_running_mean_is_centred_and_keeps_a_straight_line():
    straight = [float(value) for value in range(20)]
    assert curves._running_mean(straight, 3)[3:-3] == pytest.approx(straight[3:-3])
    assert curves._running_mean([4.0, 0.0, 2.0], 1) == [2.0, 2.0, 1.0]


@pytest.fixture
def unit_square():
    """Axes of which one unit is the whole picture."""
    figure = Figure(layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    return axes


def label_boxes(axes, positions, labels, **changes):
    annotations = label_points(axes, positions, labels, **changes)
    return [matplotlib.text.Text.get_window_extent(each) for each in annotations]


def test_labels_of_a_crowd_do_not_overlap(unit_square):
    crowd = [(0.5, 0.5), (0.51, 0.5), (0.5, 0.51), (0.51, 0.51)]
    boxes = label_boxes(unit_square, crowd, ["k=0.1", "k=0.2", "k=0.5", "k=1"])
    assert not any(boxes[i].overlaps(boxes[j]) for i in range(4) for j in range(i))


def test_labels_keep_off_lines_between_their_corners(unit_square):
    line = [(0.0, 0.5), (1.0, 0.5)]
    (box,) = label_boxes(unit_square, [(0.5, 0.5)], ["k=0.1"], lines=[line])
    _, y = unit_square.transData.transform((0.5, 0.5))
    assert not box.y0 < y < box.y1


def test_a_label_lies_nearer_to_its_own_point_than_to_others(unit_square):
    points = [(0.5, 0.5), (0.55, 0.48)]
    line = [(0.0, 0.5), (1.0, 0.5)]  # pushes the first label up, to the right above the second
    box, _ = label_boxes(unit_square, points, ["k=8", "k=4"], lines=[line])
    centre = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    own, other = unit_square.transData.transform(points)
    assert math.dist(centre, own) < math.dist(centre, other)


def test_matplotlib_settings_are_left_as_they_were(tmp_path):
    with matplotlib.rc_context({"font.size": 3, "legend.frameon": True}):
        plot_loss_curves([CURVE], tmp_path / "loss.png")
        assert matplotlib.rcParams["font.size"] == 3
        assert matplotlib.rcParams["legend.frameon"]


def plot_nothing_of_methods(points, path):
    plot_methods({"One": points}, path, title="", utility=Scale(""))


@pytest.mark.parametrize(
    "plot",
    [plot_trade_off, plot_budget_trajectories, plot_loss_curves, plot_nothing_of_methods],
)
def test_a_picture_of_nothing_is_refused(plot, tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        plot([], tmp_path / "nothing.png")


def test_unknown_file_types_and_unequal_steps_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.svg or \.pdf, got .*loss\.jpg"):
        plot_loss_curves([CURVE], tmp_path / "loss.jpg")
    with pytest.raises(ValueError, match="one value per step, got 2 and 1"):
        BudgetTrajectory(label="", k=1, debt=0, bound=1, spends=[0, math.inf], accepted=[True])


def test_divergences_of_a_ledger_are_drawn_step_by_step(drawn, pair, tmp_path):
    (result,) = Decoder(pair, Anchored(k=0.5)).generate("the keeper of", max_new_tokens=5, top_k=9)
    with pytest.raises(ValueError, match="holds no divergences"):
        plot_divergences(result.ledger, tmp_path / "none.png")
    longer = with_divergences(result.ledger, pair)
    plot_divergences(longer, tmp_path / "one.svg")
    distances, axes = drawn
    spends, budgets = (line_of(axes, name) for name in ("spend: KL(p* || p_s)", "allowance"))
    assert spends.get_ydata() == pytest.approx([step.spend for step in longer.steps])
    assert budgets.get_ydata() == pytest.approx([step.budget for step in longer.steps])
    finite = [math.nan if math.isinf(s.kl_risky_safe) else s.kl_risky_safe for s in longer.steps]
    risky_safe = line_of(distances, "models apart: KL(p_r || p_s)").get_ydata()
    assert risky_safe == pytest.approx(finite, nan_ok=True)


def test_a_legend_of_many_names_is_not_cut_off(monkeypatch, tmp_path):
    figures = []
    save = series.save_figure

    def keep_and_save(figure, path):
        figures.append(figure)
        save(figure, path)

    monkeypatch.setattr(series, "save_figure", keep_and_save)
    curves = {f"setting {n}": Series([1.0, 2.0], [0.5, n]) for n in range(30)}
    plot_series({"": curves}, tmp_path / "many.png", title="T", x_label="x", y_label="y")
    (legend,), whole = figures[0].legends, figures[0].get_figure(root=True)
    box = legend.get_window_extent()
    assert box.y0 >= 0 and box.y1 <= whole.bbox.y1
