"""What the quickstart claims: each finding can fail, and figures that are not defined stay so."""

import json
import math
from dataclasses import replace

import pytest

from anchored import Anchored, RiskyOnly, SafeOnly
from anchored.eval.copying import METRICS
from anchored.eval.seed_statistics import over_seeds
from anchored.eval.utility import Utility
from anchored.tools.quickstart.findings import findings
from anchored.tools.quickstart.generation import Setting
from anchored.tools.quickstart.summary import EXTRA, SettingSummary, recommended

NUM_BYTES = [100, 100, 100]


def utility(bits_per_byte: float) -> Utility:
    """Three excerpts that cost the same."""
    return Utility(nats=[bits_per_byte * math.log(2) * n for n in NUM_BYTES], num_bytes=NUM_BYTES)


def summary(setting: Setting, word_lcs: float, ncr: float, bits: float, gap: float):
    return SettingSummary(
        setting=setting,
        copying={name: over_seeds([word_lcs]) for name in METRICS},
        ncr=over_seeds([ncr]),
        utility={"mixture": utility(2.0), EXTRA: utility(bits)},
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
        summary(Setting("p_s", SafeOnly()), 1.0, 1.0, 3.0, 0.0),
        summary(strict, 1.0, 0.99, 2.9, 0.1),
        summary(middle, 2.0, 0.80, 2.5, 0.5),
        summary(loose, 9.0, 0.20, 2.1, 0.9),
        summary(Setting("p_r", RiskyOnly()), 10.0, 0.0, 2.0, 1.0),
    ]


def failing(summaries: list[SettingSummary]) -> list[str]:
    return [finding.claim for finding in findings(summaries) if not finding.holds]


def test_every_claim_holds_where_the_figures_say_so(summaries):
    assert failing(summaries) == []


@pytest.mark.parametrize(
    ("index", "change", "claim"),
    [
        (4, {"copying": {name: over_seeds([4.9]) for name in METRICS}}, "recites"),
        (4, {"utility": {"mixture": utility(2.0), EXTRA: utility(3.0)}}, "predicts held-out"),
        (1, {"ncr": over_seeds([0.94])}, "smallest budget"),
        (3, {"ncr": over_seeds([0.51])}, "largest budget"),
        (2, {"gap_closed": 0.29}, "in between"),
        (2, {"ncr": over_seeds([0.74])}, "in between"),
        (3, {"utility": {"mixture": utility(2.0), EXTRA: utility(2.6)}}, "improve"),
        (2, {"is_within_bounds": False}, "bound"),
    ],
)
def test_each_claim_can_fail_alone(summaries, index, change, claim):
    summaries[index] = replace(summaries[index], **change)
    (failed,) = failing(summaries)
    assert claim in failed


def test_of_the_protecting_budgets_the_most_useful_is_recommended(summaries):
    assert recommended(summaries).setting.k == 1.0


def test_without_a_protecting_budget_the_safest_is_recommended(summaries):
    summaries[1:4] = [
        replace(s, ncr=over_seeds([0.7 - i / 10])) for i, s in enumerate(summaries[1:4])
    ]
    assert recommended(summaries).setting.k == 0.1


def test_figures_that_are_not_defined_are_null_and_support_no_claim(summaries):
    nothing = {"ncr": over_seeds([math.nan]), "gap_closed": math.nan}
    undefined = [replace(s, **nothing) for s in summaries]
    assert len(failing(undefined)) == 3  # the three on NCR
    row = json.loads(json.dumps(undefined[2].as_json(), allow_nan=False))
    assert row["ncr"] == {"mean": None, "std": None, "num_seeds": 1} and row["gap_closed"] is None
    assert row["spent"] == 1.0 and row["k"] == 1.0
