"""What the quickstart claims: each finding can fail, and figures that are not defined stay so."""

import json
import math
from dataclasses import replace

import pytest

from anchored import Anchored, RiskyOnly, SafeOnly
from anchored.eval.copying.metrics import METRICS
from anchored.eval.copying.ncr import NcrStatistics
from anchored.eval.experiments.experiment import Setting
from anchored.eval.experiments.summary import SettingSummary, recommended
from anchored.eval.quality.bits_per_byte import Utility
from anchored.eval.statistics import over_seeds
from anchored.tools.quickstart.findings import findings
from anchored.tools.quickstart.questions import TASK

NUM_BYTES = [100, 100, 100]


def utility(bits_per_byte: float) -> Utility:
    """Three excerpts that cost the same."""
    return Utility(nats=[bits_per_byte * math.log(2) * n for n in NUM_BYTES], num_bytes=NUM_BYTES)


def over_metrics(ncr: float, num_metrics: int = len(METRICS)) -> NcrStatistics:
    """NCR of one seed."""
    return NcrStatistics(ncr, math.nan, 1, num_metrics)


def summary(
    setting: Setting, word_lcs: float, ncr: float, accuracy: float, bits: float, gap: float
):
    return SettingSummary(
        setting=setting,
        copying={name: over_seeds([word_lcs]) for name in METRICS},
        ncr=over_metrics(ncr),
        utility={"documentation": utility(2.0), "facts": utility(bits)},
        accuracy={TASK: accuracy},
        gap_closed=gap,
        mean_spent=1.0,
        mean_bound=2.0,
        risky_token_share=0.1,
        is_within_bounds=True,
    )


@pytest.fixture
def summaries() -> list[SettingSummary]:
    """A run in which every claim holds: p_s, three budgets, p_r."""
    strict, middle, loose = (Setting(f"k={k:g}", Anchored(k=k), k) for k in (0.1, 1.0, 8.0))
    return [
        summary(Setting("p_s", SafeOnly()), 1.0, 1.0, 0.25, 3.0, 0.0),
        summary(strict, 1.0, 0.99, 0.4, 2.9, 0.1),
        summary(middle, 2.0, 0.96, 0.85, 2.5, 0.5),
        summary(loose, 9.0, 0.20, 0.9, 2.1, 0.9),
        summary(Setting("p_r", RiskyOnly()), 30.0, 0.0, 0.95, 2.0, 1.0),
    ]


def failing(summaries: list[SettingSummary]) -> list[str]:
    judged = findings(summaries, shows_effects=True)
    return [finding.claim for finding in judged if not finding.holds]


@pytest.mark.parametrize(
    ("index", "change", "claim"),
    [
        (4, {"copying": {name: over_seeds([19.9]) for name in METRICS}}, "recites"),
        (0, {"copying": {name: over_seeds([3.1]) for name in METRICS}}, "recites"),
        (4, {"accuracy": {TASK: 0.79}}, "knows the facts"),
        (1, {"ncr": over_metrics(0.94)}, "smallest budget"),
        (3, {"ncr": over_metrics(0.51)}, "largest budget"),
        (2, {"accuracy": {TASK: 0.8}}, "one budget"),
        (2, {"ncr": over_metrics(0.94)}, "one budget"),
        (3, {"utility": {"documentation": utility(2.0), "facts": utility(2.6)}}, "improve"),
        (2, {"is_within_bounds": False}, "bound"),
    ],
)
def test_each_claim_can_fail_alone(summaries, index, change, claim):
    summaries[index] = replace(summaries[index], **change)
    (failed,) = failing(summaries)
    assert claim in failed


def test_the_smallest_budget_that_is_good_enough_is_recommended(summaries):
    """Not the largest that protects: its bound may exclude nothing."""
    assert failing(summaries) == [] and recommended(summaries).setting.k == 1.0
    protecting = [replace(each, ncr=over_metrics(0.8)) for each in summaries]
    for gaps, k in (((0.95, 0.97, 0.99), 0.1), ((0.5, 0.91, 0.99), 1.0), ((0.5, 0.7, 0.8), 8.0)):
        for each, gap in zip(range(1, 4), gaps, strict=True):
            protecting[each] = replace(protecting[each], gap_closed=gap)
        assert recommended(protecting).setting.k == k
    summaries[1:4] = [
        replace(s, ncr=over_metrics(0.7 - i / 10)) for i, s in enumerate(summaries[1:4])
    ]
    assert recommended(summaries).setting.k == 0.1


def test_figures_that_are_not_defined_are_null_and_support_no_claim(summaries):
    nothing = {"ncr": over_metrics(math.nan, 0), "gap_closed": math.nan}
    undefined = [replace(s, **nothing) for s in summaries]
    assert len(failing(undefined)) == 3  # those on NCR
    row = json.loads(json.dumps(undefined[2].as_json(), allow_nan=False))
    figures = {"mean": None, "std": None, "num_seeds": 1, "num_metrics": 0}
    assert {name: row["ncr"][name] for name in figures} == figures
    assert row["gap_closed"] is None
    assert row["spent"] == 1.0 and row["k"] == 1.0


def test_figures_behind_a_claim_say_over_how_many_metrics_an_ncr_is(summaries):
    fewer = [replace(s, ncr=s.ncr._replace(num_metrics=4)) for s in summaries]
    for given, of in ((summaries, ""), (fewer, " [4 of 6]")):
        figures = {one.figures for one in findings(given, shows_effects=True)}
        assert f"NCR 0.990{of} at k=0.1" in figures
        assert f"k=1: NCR 0.960{of}, 0.85 right, 86% closed" in figures


def test_a_preset_too_small_for_effects_judges_the_bounds_alone(summaries):
    *effects, bounds = findings(summaries, shows_effects=False)
    assert {one.holds for one in effects} == {None} and bounds.holds
    assert str(effects[2]) == (
        "[ - ] the smallest budget removes the copying (NCR at least 0.95): "
        "not shown by this preset (NCR 0.990 at k=0.1)"
    )
    broken = [replace(s, is_within_bounds=False) for s in summaries]
    assert str(findings(broken, shows_effects=False)[-1]).startswith("[ NO] every certified")
