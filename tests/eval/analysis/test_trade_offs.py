"""Figures in resamples: their mean is the figure, and figures of the same units vary together."""

import json

import numpy as np
import pytest
from json_lines import write_json_lines

from anchored.eval.analysis.recorded_run import RecordedRun
from anchored.eval.analysis.trade_offs import (
    bits_in_resamples,
    judged_in_resamples,
    ncr_in_resamples,
)
from anchored.eval.copying.metrics import METRICS


def score(setting, id, seed, words):
    zeros = dict.fromkeys(("rouge1_f1", "rougeL_f1", *METRICS[2:]), 0)
    return {"setting": setting, "id": id, "seed": seed, **zeros, "word_lcs": words}


@pytest.fixture
def run(tmp_path):
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


def test_the_figures_vary_about_what_was_measured(run):
    ncr = ncr_in_resamples(run)
    assert list(ncr) == ["p_s", "k=1", "p_r"]  # one that lacks a prompt has none
    assert (ncr["p_s"] == 1).all() and (ncr["p_r"] == 0).all()
    # 1 - half of the share of the first four: 0.75, with a deviation of 0.25 / sqrt(8).
    assert ncr["k=1"].mean() == pytest.approx(0.75, abs=0.01)
    assert ncr["k=1"].std() == pytest.approx(0.25 / np.sqrt(8), rel=0.1)
    bits = bits_in_resamples(run, "bits_per_byte/facts")
    assert bits["p_s"] == pytest.approx(np.full(1000, 2 / np.log(2)))
    assert bits["k=1"].mean() == pytest.approx(1.25 / np.log(2), abs=0.05)
    assert np.isnan(bits["p_r"]).all()  # an excerpt without a probability
    assert bits_in_resamples(run, "accuracy/facts") == {}


def test_figures_of_the_same_prompts_vary_together(run):
    """A grade of 3 where half is copied, 5 elsewhere: 1 + 4 NCR in every resample."""
    grades = judged_in_resamples(run, "fluency")["k=1"]
    assert grades == pytest.approx(1 + 4 * ncr_in_resamples(run)["k=1"])
    assert judged_in_resamples(run, "win-rate") == {}
