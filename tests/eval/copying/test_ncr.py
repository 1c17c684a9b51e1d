"""Normalized copying reduction: the paper's tables, its end points, and metrics without a gap."""

import json
import math
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.copying.literal import copying_reduction, ncr_scope, paired_ncr
from anchored.eval.copying.metrics import METRICS

TABLES = Path(__file__).parents[4] / "shared/reference/paper_tables.json"
SAFE = dict.fromkeys(METRICS, 1.0)
RISKY = {name: 2.0 + position for position, name in enumerate(METRICS)}


def mixed(share):
    """Means that have closed `share` of the gap of each metric."""
    return {name: RISKY[name] + share * (SAFE[name] - RISKY[name]) for name in METRICS}


@pytest.mark.skipif(not TABLES.exists(), reason="shared/reference is not here")
def test_every_row_of_every_table_of_the_paper_is_reproduced():
    tables = json.loads(TABLES.read_text(encoding="utf-8"))["full_tables"]
    num_rows = 0
    for label, table in tables.items():
        means = {row["setting"]: row for row in table["rows"]}
        for row in table["rows"]:
            reduction = copying_reduction(row, risky=means["p_r"], safe=means["p_s"])
            # The file keeps six decimals.
            where = (label, row["setting"])
            assert fmean(reduction.values()) == pytest.approx(row["ncr"], abs=5.1e-7), where
            assert reduction == pytest.approx(row["ncr_per_metric"], abs=5.1e-7), where
            num_rows += 1
    assert num_rows == 6 * 26


@given(st.floats(-2, 3))
def test_a_mixture_of_both_models_has_its_share_as_ncr(share):
    # Shares below 0 and above 1 come out as they are: nothing is clipped.
    reduction = copying_reduction(mixed(share), risky=RISKY, safe=SAFE)
    assert reduction == pytest.approx(dict.fromkeys(METRICS, share), abs=1e-12)


def test_a_metric_without_a_gap_is_left_out():
    risky = RISKY | {"minhash": 1.0, "word_acs": 0.5}  # equal to safe, and below it
    setting = mixed(0.5) | {"minhash": 7.0, "word_acs": 7.0}
    reduction = copying_reduction(setting, risky=risky, safe=SAFE)
    assert reduction == pytest.approx(dict.fromkeys(METRICS[:4], 0.5))


def scores(*figures):
    """A text in each seed, with one number for all metrics; ROUGE counts from 0.4 on."""
    names = ("rouge1_f1", "rougeL_f1", *METRICS[2:])
    return {("p", seed): dict.fromkeys(names, figure) for seed, figure in enumerate(figures)}


def test_seeds_are_reduced_one_by_one_and_then_averaged():
    ncr = paired_ncr(scores(1.0, 0.0), risky=scores(2.0, 8.0), safe=scores(0.0, 0.0))
    first = (2 * 0 + 4 * 0.5) / 6  # ROUGE counts the text as the risky model's
    assert ncr["mean"] == pytest.approx((first + 1) / 2)
    assert ncr["std"] == pytest.approx((1 - first) / math.sqrt(2))
    assert (ncr["num_seeds"], ncr["num_metrics"], ncr_scope(ncr)) == (2, 6, "")


def test_an_ncr_says_over_how_many_metrics_it_is_at_least():
    ncr = paired_ncr(scores(0.0, 0.0), risky=scores(2.0, 0.3), safe=scores(0.0, 0.0))
    assert (ncr["num_metrics"], ncr_scope(ncr)) == (4, " [4 of 6]")
    alike = paired_ncr(scores(1.0), risky=scores(1.0), safe=scores(1.0))
    assert alike["mean"] is None and alike["num_metrics"] == 0
