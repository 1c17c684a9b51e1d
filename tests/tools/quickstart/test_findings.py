"""Findings of the quickstart: each can fail, and figures that are not defined stay so."""

import math

import pytest

from anchored.eval.copying.metrics import METRICS
from anchored.eval.experiments.measures import recommended
from anchored.eval.quality.bits_per_byte import Utility
from anchored.eval.statistics import over_seeds
from anchored.tools.quickstart.findings import ACCURACY, Finding, findings

NUM_BYTES = [100, 100, 100]


def utility(bits_per_byte: float) -> Utility:
    """Three excerpts that cost the same."""
    return Utility(nats=[bits_per_byte * math.log(2) * n for n in NUM_BYTES], num_bytes=NUM_BYTES)


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


FACTS = {"p_s": 3.0, "k=0.1": 2.9, "k=1": 2.5, "k=8": 2.1, "p_r": 2.0}


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


def judged(rows: list[dict], shows_effects: bool = True, **bits: float) -> list[Finding]:
    facts = {name: utility(num_bits) for name, num_bits in {**FACTS, **bits}.items()}
    return findings(rows, facts, shows_effects=shows_effects)


def failing(rows: list[dict], **bits: float) -> list[str]:
    return [finding.claim for finding in judged(rows, **bits) if not finding.holds]


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
    assert failing(rows) == []
    rows[index] |= change
    (failed,) = failing(rows)
    assert claim in failed


def test_what_proves_most_of_what_is_good_enough_is_recommended(rows):
    assert recommended(rows)["setting"] == "Pathwise, k=2"
    rows[5]["gap_closed"] = 0.49
    assert recommended(rows)["setting"] == "Pathwise, k=1"
    rows[4]["ncr"] = over_metrics(0.7)
    unproved = [{**entry, "recited": None} for entry in rows]
    assert recommended(rows)["setting"] == recommended(unproved)["setting"] == "k=1"


def test_the_worst_work_is_that_of_the_best_useful_budget_of_each_rule(rows):
    (proved,) = (one.figures for one in judged(rows) if "the worst work" in one.claim)
    # k=1 proves more than k=8; k=2 of Pathwise proves most and answers too little.
    assert proved == "Pathwise, k=1: 0.88 right, 2e-36; k=1: 0.85 right, 0.1"
    rows[4][ACCURACY] = rows[3][ACCURACY] = rows[2][ACCURACY] = 0.5
    (proved,) = (one.figures for one in judged(rows) if "the worst work" in one.claim)
    assert proved == "Pathwise, k=2: 0.80 right, 1e-90; k=0.1: 0.40 right, 0.02"


def test_a_preset_too_small_for_effects_judges_the_bounds_alone(rows):
    *effects, bounds = judged(rows, shows_effects=False)
    assert {one.holds for one in effects} == {None} and bounds.holds
    assert str(effects[2]) == (
        "[ - ] every budget removes the copying (NCR at least 0.95): "
        "not shown by this preset (NCR 0.950 at k=8)"
    )
    broken = [{**entry, "is_within_bounds": False} for entry in rows]
    assert str(judged(broken, shows_effects=False)[-1]).startswith("[ NO] every certified")
