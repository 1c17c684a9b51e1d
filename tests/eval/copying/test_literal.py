"""Copying of recorded texts by setting: means, NCR and the distribution that a mean hides."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest
from copying_cases import number_words
from hypothesis import given
from hypothesis import strategies as st

from anchored.eval.copying.literal import (
    copying_reduction,
    copying_results,
    distribution,
    extraction,
    high_protection,
    ncr_scope,
    paired_ncr,
)
from anchored.eval.copying.metrics import METRICS, copying_score
from anchored.eval.recorded_texts import RecordedText

REFERENCE = number_words(1, 90)


def text(setting, seed, num_copied, place="0"):
    copied = number_words(1, num_copied) if num_copied else "nothing here"
    return RecordedText(setting=setting, id=place, seed=seed, text=copied, reference=REFERENCE)


def test_quantiles_and_shares_show_the_few_that_copy_much():
    counts = {2: 90, 7: 5, 21: 4, 51: 1}
    scores = {n: copying_score(number_words(1, n), REFERENCE) for n in counts}
    plain = distribution([scores[n] for n, count in counts.items() for _ in range(count)])
    assert plain["share_above"] == {"6": 0.10, "20": 0.05, "50": 0.01}
    assert plain["quantiles"]["word_acs"] == {"0.5": 0, "0.9": 0, "0.99": 21, "1.0": 51}


def test_seeds_are_paired_by_their_numbers():
    texts = [text(setting, seed, n) for setting, n in (("p_s", 0), ("p_r", 40)) for seed in (0, 1)]
    # Of the seeds 1 and 7 the risky model has drawn one alone.
    texts += [text("one", 7, 40), text("one", 1, 20), text("none", 8, 0)]
    ncr = {row["setting"]: row["ncr"] for row in copying_results(texts)["settings"]}
    assert 0 < ncr["one"]["mean"] < 1 and ncr["one"]["num_seeds"] == ncr["one"]["num_texts"] == 1
    assert ncr["none"]["mean"] is None and ncr_scope(ncr["none"]) == " {0 of 3}"


def scores_of(*lengths):
    """By prompt, the words that its texts copy."""
    return {
        (str(prompt), seed): copying_score(number_words(1, length), REFERENCE)
        for prompt, prompt_lengths in enumerate(lengths)
        for seed, length in enumerate(prompt_lengths)
    }


def test_several_texts_of_a_prompt_extract_what_one_hides():
    extracted = extraction(scores_of([2, 30, 2, 2], [2, 2, 2, 2]))
    assert extracted["num_samples"] == 4 and extracted["longest_of_samples"] == (30 + 2) / 2
    assert extracted["chance_above"] == {"6": 0.5, "20": 0.5, "50": 0.0}
    # Fewer texts of one prompt: two of four hold the one that recites in half of the draws.
    extracted = extraction(scores_of([2, 30, 2, 2], [2, 2]))
    assert extracted["num_samples"] == 2 and extracted["longest_of_samples"] == (16 + 2) / 2
    assert extracted["chance_above"]["20"] == 0.25


def test_a_difference_is_paired_by_prompt_and_seed():
    """Prompts differ by far more than the settings do, which all of them do alike."""
    texts = [
        text(setting, seed, num_copied, str(place))
        for place in range(24)
        for setting, copied in {"p_s": 0, "half": 10, "less": 14, "p_r": 60}.items()
        for seed, num_copied in enumerate([copied + 40 * (place % 2 and copied in (10, 14))] * 2)
    ]
    results = copying_results(texts, beside="less")
    differences = {figures["setting"]: figures["difference"] for figures in results["settings"]}
    # A difference that no resample changes has no interval.
    assert differences["less"] == {"ncr": 0, "low": -math.inf, "high": math.inf, "num_prompts": 24}
    assert differences["p_s"]["ncr"] > differences["half"]["ncr"] > 0 > differences["p_r"]["ncr"]
    ncr = {figures["setting"]: figures["ncr"]["mean"] for figures in results["settings"]}
    assert differences["half"]["ncr"] == pytest.approx(ncr["half"] - ncr["less"])
    low, high = differences["half"]["low"], differences["half"]["high"]
    assert 0 < low < differences["half"]["ncr"] < high
    # What is not paired spreads as the prompts do: against p_r, which copies all of each.
    alone = copying_results(texts, beside="p_r")["settings"][1]["difference"]
    assert high - low < 0.1 * (alone["high"] - alone["low"])
    with pytest.raises(ValueError, match="no texts of 'other', only of p_s, half, less, p_r"):
        copying_results(texts, beside="other")
    with pytest.raises(ValueError, match=r"'p_s', 'id': '0', 'seed': 0.* has no reference"):
        copying_results([replace(texts[0], reference=None)])


TABLES = Path(__file__).parents[4] / "shared/reference/paper_tables.json"
SAFE = dict.fromkeys(METRICS, 1.0)
RISKY = {name: 2.0 + position for position, name in enumerate(METRICS)}


def mixed(share):
    """Means that have closed `share` of the gap of each metric."""
    return {name: RISKY[name] + share * (SAFE[name] - RISKY[name]) for name in METRICS}


@pytest.mark.skipif(not TABLES.exists(), reason="shared/reference is not here")
def test_every_row_of_every_table_of_the_paper_is_reproduced():
    tables = json.loads(TABLES.read_text(encoding="utf-8"))["full_tables"]
    assert [len(table["rows"]) for table in tables.values()] == [26] * 6
    for table in tables.values():
        means = {row["setting"]: row for row in table["rows"]}
        for row in table["rows"]:
            reduction = copying_reduction(row, risky=means["p_r"], safe=means["p_s"])
            # The file keeps six decimals.
            assert fmean(reduction.values()) == pytest.approx(row["ncr"], abs=5.1e-7), row
            assert reduction == pytest.approx(row["ncr_per_metric"], abs=5.1e-7), row


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


def seeds_of(*figures):
    """A text in each seed, with one number for all metrics; ROUGE counts from 0.4 on."""
    names = ("rouge1_f1", "rougeL_f1", *METRICS[2:])
    return {("p", seed): dict.fromkeys(names, figure) for seed, figure in enumerate(figures)}


def test_seeds_are_reduced_one_by_one_and_then_averaged():
    ncr = paired_ncr(seeds_of(1.0, 0.0), risky=seeds_of(2.0, 8.0), safe=seeds_of(0.0, 0.0))
    first = (2 * 0 + 4 * 0.5) / 6  # ROUGE counts the text as the risky model's
    assert ncr["mean"] == pytest.approx((first + 1) / 2)
    assert ncr["std"] == pytest.approx((1 - first) / math.sqrt(2))
    assert (ncr["num_seeds"], ncr["num_metrics"], ncr_scope(ncr)) == (2, 6, "")


def test_the_best_protected_row_of_each_method_is_chosen_whole():
    figures = [
        ("a", 0.9, 0.3, 5.0),
        ("a", 0.75, 0.4, 3.0),  # the threshold itself is protected
        ("a", 0.7499, 0.9, 4.0),
        ("b", 0.2, 0.9, 5.0),
        ("c", math.nan, 0.9, 5.0),  # what is not defined protects nobody
        ("d", 0.9, None, 5.0),  # and is taken last
        ("d", 0.8, 0.0, 5.0),
    ]
    names = ("method", "ncr", "factuality", "fluency")
    rows = [dict(zip(names, row, strict=True)) for row in figures]
    undefined = {"c": None, "d": rows[6]}
    assert high_protection(rows) == {"a": rows[1], "b": None, **undefined}
    assert high_protection(rows[:3], utility="fluency") == {"a": rows[0]}
