"""The analyses against figures by hand, on ledgers and rows made up for them; figures in resamples,
whose mean is the figure, and which vary together where they are of the same units."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from json_lines import write_json_lines
from recorded_runs import HOSTILE, record_run

from anchored.eval.analysis.evaluated import copying_distribution, judgement, precision_by_group
from anchored.eval.analysis.recorded_run import RecordedRun
from anchored.eval.analysis.run_report import run_report
from anchored.eval.analysis.texts import (
    debt_deciles,
    prefix_ratios,
    start_positions,
    step_divergences,
)
from anchored.eval.analysis.trade_offs import (
    bits_in_resamples,
    judged_in_resamples,
    ncr_in_resamples,
    trade_off_points,
)
from anchored.eval.copying.metrics import METRICS


@pytest.fixture
def run(tmp_path) -> RecordedRun:
    return RecordedRun(record_run(tmp_path / "run"))


def test_divergences_are_split_by_domain_and_their_tail_by_a_common_quantile(run):
    section = step_divergences(run)
    # The risky model's steps diverge by 1, 2, 3 (books) and 4, 5, 6 nats (news): q90 is 6.
    books, news = section.rows
    assert (books["domain"], books["steps"], books["mean"], books["tail"]) == ("books", 3, 2.0, 0)
    assert (news["domain"], news["median"], news["tail"]) == ("news", 5.0, 1 / 3)


def test_ratios_and_debts_of_prompts_are_shown_with_what_is_copied_after_them(run):
    rows = {(row["figure"], row["domain"]): row for row in prefix_ratios(run).rows}
    assert rows["debt, window 5", "books"]["mean"] == 1.0
    # The ratios of prompt a alone are recorded: -1, 0.5, 2.
    ratios = rows["ratio of a symbol", "books"]
    assert (ratios["count"], ratios["mean"], ratios["q99"]) == (3, 0.5, 2.0)
    assert ("ratio of a symbol", "news") not in rows
    first, second = debt_deciles(run).rows
    assert (first["from"], first["to"], first["word_lcs"]) == (1.0, 1.0, 2.0)
    assert (second["from"], second["prompts"], second["word_lcs"]) == (3.0, 1, 8.0)
    assert first["window"] == 5


def test_spans_have_their_starts_shares_and_quantiles(run):
    rows = {(row["setting"], row["spans"]): row for row in start_positions(run).rows}
    # Of the two spans of p_r, of 2 and 8 words, the second begins at word 12.
    assert rows["p_r", "word LCS"]["median"] == 8.0
    assert rows["p_r", "word LCS"]["early"] == 0.5
    assert rows["p_r", "word LCS of 5 words"]["median"] == 12.0
    assert rows["p_r", "ACS"]["texts"] == 1
    assert ("p_s", "ACS") not in rows
    lengths = copying_distribution(run).rows
    assert [row["setting"] for row in lengths] == list(run.by_setting)
    assert (lengths[0]["above 6"], lengths[0]["above 50"], lengths[0]["q1.0"]) == (0.5, 0.0, 9)


def test_precision_is_split_by_group_and_ordered_by_k(run, tmp_path):
    path = tmp_path / "elsewhere/factuality.json"
    path.parent.mkdir()
    figures = {"macro": {"mean": 0.5, "std": None, "num_seeds": 1}}
    settings = [{"setting": "k=1", "by_group": {"rare": figures, "frequent": {"macro": None}}}]
    path.write_text(json.dumps({"judge": "factuality", "settings": settings}))
    run = replace(run, evaluation=path.parent)
    (row,) = precision_by_group(run).rows
    assert (row["k"], row["rare"]["mean"], row["frequent"]) == (1.0, 0.5, None)
    path.write_text('{"judge": "fluency"}')
    with pytest.raises(ValueError, match=r"factuality\.json is not what anchored evaluate"):
        precision_by_group(run)


def test_trade_offs_are_of_the_methods_without_a_sweep_s_ablations(run):
    safe, first, second, risky = judgement("fluency", run).draw.args[0][""]
    assert (first.method, first.label, second.label) == ("Anchored", "k=1", f"k=2 {HOSTILE}")
    assert (safe.protection, safe.utility) == (second.protection, second.utility) == (0.5, 4.0)
    assert math.isnan(risky.utility)
    path = run.folder / "results.json"
    results = json.loads(path.read_text())
    for row, method in zip(results["rows"], ["p_s", "Ours", "System", "p_r"], strict=True):
        row["method"] = method
    results["rows"][1]["setting"] = "Ours, n=1"
    figures = {"p_s": "methods", "p_r": "methods", "Ours": "debt", "System": "methods"}
    results["methods"] = {
        name: {"figures": [figure], "is_swept": False} for name, figure in figures.items()
    }
    path.write_text(json.dumps(results))
    run = RecordedRun(run.folder)
    points = judgement("fluency", run).draw.args[0][""]
    assert [point.method for point in points] == ["p_s (safe model)", "System", "p_r (risky model)"]
    (ablation,) = trade_off_points(run, {}, {}, figure="debt")
    assert (ablation.method, ablation.label) == ("Ours", "n=1") and math.isnan(ablation.utility)
    assert trade_off_points(run, {}, {}, figure="budget") == []


def test_as_many_ledgers_as_are_named_are_read_none_from_elsewhere_or_damaged(tmp_path):
    folder = record_run(tmp_path / "run")
    assert len(RecordedRun(folder, max_ledgers=1).ledgers("p_r")) == 1
    assert len(RecordedRun(folder, max_ledgers=0).ledgers("p_r")) == 2
    elsewhere = folder / "ledgers/p_r/a-0.jsonl"
    elsewhere.rename(tmp_path / "a-0.jsonl")
    rows = folder / "generations/p_r.jsonl"
    rows.write_text(rows.read_text().replace("ledgers/p_r/a-0.jsonl", "../a-0.jsonl"))
    assert len(RecordedRun(folder).ledgers("p_r")) == 1
    path = folder / "ledgers/p_r/b-0.jsonl"
    path.write_text(path.read_text().replace('"spend": 5.0', '"spend": 5.5'))
    with pytest.raises(ValueError, match=r"b-0\.jsonl: a figure was changed"):
        run_report(RecordedRun(folder), num_texts=0)


def score(setting, id, seed, words):
    zeros = dict.fromkeys(("rouge1_f1", "rougeL_f1", *METRICS[2:]), 0)
    return {"setting": setting, "id": id, "seed": seed, **zeros, "word_lcs": words}


@pytest.fixture
def half_copied(tmp_path):
    """Eight prompts, of which k=1 copies the first half by half; grades say the same."""
    texts = [(f"w{number}", seed) for number in range(8) for seed in (0, 1)]
    copied = {"p_s": lambda _: 0, "k=1": lambda id: 10 * (id < "w4"), "p_r": lambda _: 20}
    examples = [
        score(name, *text, num_copied(text[0]))
        for name, num_copied in copied.items()
        for text in texts
    ]
    missing = [score("cut", *text, 0) for text in texts[1:]]
    bits = {"p_s": [8.0] * 4, "k=1": [2.0, 4.0, 6.0, 8.0], "p_r": [2.0, None, 2.0, 2.0]}
    utility = [
        {"setting": name, "held_out": "facts", "nats": nats, "num_bytes": [4, 4, 4, 4]}
        for name, nats in bits.items()
    ]
    results = {"rows": [], "examples": [*examples, *missing[1:]], "utility": utility}
    (tmp_path / "results.json").write_text(json.dumps(results))
    rows = [
        {"setting": "k=1", "id": id, "seed": seed, "fluency": None if seed else 5 - 2 * (id < "w4")}
        for id, seed in texts
    ]
    write_json_lines(tmp_path / "generations/k=1.jsonl", [{"id": "w0", "text": "a"}])
    (tmp_path / "evaluation").mkdir()
    judged = {"judge": "fluency", "settings": [], "rows": rows}
    (tmp_path / "evaluation" / "fluency.json").write_text(json.dumps(judged))
    return RecordedRun(tmp_path)


def test_the_figures_vary_about_what_was_measured(half_copied):
    ncr = ncr_in_resamples(half_copied)
    assert list(ncr) == ["p_s", "k=1", "p_r"]  # one that lacks a prompt has none
    assert (ncr["p_s"] == 1).all() and (ncr["p_r"] == 0).all()
    # 1 - half of the share of the first four: 0.75, with a deviation of 0.25 / sqrt(8).
    assert ncr["k=1"].mean() == pytest.approx(0.75, abs=0.01)
    assert ncr["k=1"].std() == pytest.approx(0.25 / np.sqrt(8), rel=0.1)
    bits = bits_in_resamples(half_copied, "bits_per_byte/facts")
    assert bits["p_s"] == pytest.approx(np.full(1000, 2 / np.log(2)))
    assert bits["k=1"].mean() == pytest.approx(1.25 / np.log(2), abs=0.05)
    assert np.isnan(bits["p_r"]).all()  # an excerpt without a probability
    assert bits_in_resamples(half_copied, "accuracy/facts") == {}


def test_figures_of_the_same_prompts_vary_together(half_copied):
    """A grade of 3 where half is copied, 5 elsewhere: 1 + 4 NCR in every resample."""
    grades = judged_in_resamples(half_copied, "fluency")["k=1"]
    assert grades == pytest.approx(1 + 4 * ncr_in_resamples(half_copied)["k=1"])
    assert judged_in_resamples(half_copied, "win-rate") == {}
