"""Findings of the quickstart: each can fail, and figures that are not defined stay so."""

import math
from functools import partial

import pytest

from anchored.eval.copying.metrics import METRICS
from anchored.eval.experiments.measures import recommended
from anchored.eval.quality.bits_per_byte import Utility
from anchored.eval.statistics import over_seeds
from anchored.tools.quickstart.findings import ACCURACY, findings

judged = partial(findings, shows_effects=True)
FACTS = {
    name: Utility(nats=[bits * math.log(2) * 100] * 3, num_bytes=[100] * 3)
    for name, bits in {"p_s": 3.0, "k=0.1": 2.9, "k=1": 2.5, "k=8": 2.1, "p_r": 2.0}.items()
}
"""Three excerpts that cost the same, by setting."""


def over_metrics(ncr: float) -> dict:
    """NCR of one seed."""
    return {"mean": ncr, "std": None, "num_seeds": 1, "num_metrics": len(METRICS)}


def row(name: str, word_lcs: float, ncr: float, accuracy: float, gap: float, proved=None) -> dict:
    """As `summarize` makes it; one of a budget in KL is named by its k."""
    is_kl = name.startswith("k=")
    return {
        "setting": name,
        "word_lcs": over_seeds([word_lcs]),
        "ncr": over_metrics(ncr),
        ACCURACY: accuracy,
        "gap_closed": gap,
        "recited": proved,
        "bound": None if name == "p_r" else 0.0 if name == "p_s" else 50.0,
        "k": float(name[2:]) if is_kl else None,
        **({} if is_kl else {"method": name.partition(",")[0]}),
        "is_within_bounds": True,
    }


@pytest.fixture
def rows() -> list[dict]:
    """A run in which every claim holds: p_s, three budgets in KL and two of Pathwise, p_r."""
    return [
        row("p_s", 1.0, 1.0, 0.25, 0.0),
        row("k=0.1", 1.0, 0.99, 0.4, 0.1, 0.02),
        row("k=1", 2.0, 0.97, 0.85, 0.5, 0.1),
        row("k=8", 9.0, 0.95, 0.87, 0.9, 1.0),
        row("Pathwise, k=1", 2.0, 0.98, 0.88, 0.5, 2e-36),
        row("Pathwise, k=2", 2.0, 0.96, 0.8, 0.5, 1e-90),
        row("p_r", 30.0, 0.0, 1.0, 1.0),
    ]


@pytest.mark.parametrize(
    ("index", "change", "claim"),
    [
        (6, {"word_lcs": over_seeds([19.9])}, "recites"),
        (0, {"word_lcs": over_seeds([3.1])}, "recites"),
        (6, {ACCURACY: 0.79}, "knows the facts"),
        (3, {"ncr": over_metrics(0.94)}, "every budget"),
        (0, {ACCURACY: 0.5}, "one budget"),
        (4, {"recited": 1e-30}, "the worst work"),
        (4, {ACCURACY: 0.84}, "the worst work"),
        (2, {"is_within_bounds": False}, "every certified"),
    ],
)
def test_each_claim_can_fail_alone(rows, index, change, claim):
    assert all(one.holds for one in judged(rows, FACTS))
    rows[index] |= change
    (failed,) = (one.claim for one in judged(rows, FACTS) if not one.holds)
    assert claim in failed


def test_a_larger_budget_must_improve_the_facts_beyond_the_noise(rows):
    (failed,) = (one.claim for one in judged(rows, FACTS | {"k=1": FACTS["p_s"]}) if not one.holds)
    assert "bits per byte" in failed


def test_what_proves_most_of_what_is_good_enough_is_recommended(rows):
    assert recommended(rows)["setting"] == "Pathwise, k=2"
    rows[5]["gap_closed"] = 0.49
    assert recommended(rows)["setting"] == "Pathwise, k=1"
    rows[4]["ncr"] = over_metrics(0.7)
    unproved = [{**entry, "recited": None} for entry in rows]
    assert recommended(rows)["setting"] == recommended(unproved)["setting"] == "k=1"


def test_the_worst_work_is_that_of_the_best_useful_budget_of_each_rule(rows):
    (proved,) = (one.figures for one in judged(rows, FACTS) if "the worst work" in one.claim)
    # k=1 proves more than k=8; k=2 of Pathwise proves most and answers too little.
    assert proved == "Pathwise, k=1: 0.88 right, 2e-36; k=1: 0.85 right, 0.1"
