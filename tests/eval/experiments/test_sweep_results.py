"""Tables and choices of a sweep, from figures made by hand."""

import json
import math

import pytest

from anchored.eval.analysis.recorded_run import RecordedRun
from anchored.eval.analysis.trade_offs import trade_off_points
from anchored.eval.copying.metrics import METRICS
from anchored.eval.copying.ncr import NcrStatistics
from anchored.eval.experiments import sweep_results
from anchored.eval.experiments.experiment import Experiment, Setting
from anchored.eval.experiments.summary import SettingSummary
from anchored.eval.experiments.sweep import Method, Sweep, sweep_settings
from anchored.eval.quality.bits_per_byte import Utility
from anchored.eval.statistics import SeedStatistics

SWEEP = Sweep(
    safe="safe",
    risky="risky",
    prompts="prompts.jsonl",
    held_out={"mixture": ["mixture.jsonl"], "extra": ["extra.jsonl"]},
    methods=(
        Method(rule="anchored", label="Anchored", settings={"k": [1.0, 2.0, 4.0]}),
        Method(rule="cp_fuse", label="CP-Fuse"),
    ),
)


def summary(setting: Setting, ncr: float, bits: float) -> SettingSummary:
    nats = [8 * bits * math.log(2)]
    return SettingSummary(
        setting=setting,
        copying=dict.fromkeys(METRICS, SeedStatistics(0.25, 0.125, 3)),
        ncr=NcrStatistics(ncr, 0.01, 3, 6),
        utility={name: Utility(nats=nats, num_bytes=[8]) for name in ("mixture", "extra")},
        accuracy={},
        gap_closed=math.nan if math.isinf(bits) else 0.5,
        mean_spent=3.0,
        mean_bound=None,
        risky_token_share=0.5,
        is_within_bounds=True,
    )


@pytest.fixture
def summaries() -> list[SettingSummary]:
    """CP-Fuse never protects; of the two budgets that do, the larger is worth more."""
    figures = {
        "p_s": (1.0, 3.0),
        "p_r": (0.0, 2.0),
        "CP-Fuse": (0.7, math.inf),
        "Anchored, k=1": (0.9, 2.75),
        "Anchored, k=2": (0.75, 2.5),
        "Anchored, k=4": (0.74, 2.25),
    }
    return [summary(setting, *figures[setting.name]) for setting in sweep_settings(SWEEP)]


@pytest.fixture
def folder(summaries, tmp_path, monkeypatch):
    """The tables of a sweep with these figures."""
    experiment = Experiment(
        folder=tmp_path,
        prompts=[],
        settings=sweep_settings(SWEEP),
        seeds=SWEEP.seeds,
        max_new_tokens=1,
        repetition_penalty=1.0,
        held_out={"mixture": [], "extra": []},
        extra=SWEEP.utility_set,
    )
    monkeypatch.setattr(sweep_results, "summarize", lambda _: summaries)
    monkeypatch.setattr(sweep_results, "write_results", lambda *_: None)
    sweep_results.write_sweep_results(experiment, SWEEP)
    return tmp_path


def test_the_table_of_the_protected_has_the_best_setting_of_each_method(folder):
    assert (folder / "high_protection.md").read_text().splitlines() == [
        "| method | setting | bpb extra | gap closed | NCR |",
        "| :-- | --: | --: | --: | --: |",
        "| *Reference LMs* |  |  |  |  |",
        "| p_s | p_s | 3.000 | 0.50 | 1.000 (0.010) |",
        "| p_r | - | - | - | - |",
        "| *Two-model baselines* |  |  |  |  |",
        "| CP-Fuse | - | - | - | - |",
        "| *Anchored Decoding* |  |  |  |  |",
        "| Anchored | Anchored, k=2 | 2.500 | 0.50 | 0.750 (0.010) |",
        "",
        "mean (standard deviation) over 3 seeds",
    ]


def test_the_whole_table_has_the_paper_s_order_of_columns(folder):
    table = (folder / "table.md").read_text()
    titles = table.splitlines()[0].strip("| ").split(" | ")
    assert titles[1:8] == ["ROUGE-1", "ROUGE-L", "word LCS", "char LCS", "ACS", "MinHash", "NCR"]
    assert titles[8:] == ["bpb mixture", "bpb extra", "gap closed", "spent", "bound"]
    assert r"CP-Fuse & 0.250 (0.125) & 0.250 (0.125) &" in (folder / "table.tex").read_text()
    assert "| inf | inf | - |" in table


def test_points_without_a_place_are_not_drawn_and_references_are_not_labeled(summaries, tmp_path):
    results = {
        "methods": sweep_results._about_methods(SWEEP),
        "rows": [summary.as_json() for summary in summaries],
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    run = RecordedRun(tmp_path)
    figures = [{row["setting"]: row[n] for row in run.rows} for n in ("ncr", "bits_per_byte/extra")]
    points = trade_off_points(run, *figures)
    assert [point.label for point in points] == ["", "", "", "k=1", "k=2", "k=4"]
    names = ["p_s (safe model)", "p_r (risky model)", "CP-Fuse"] + ["Anchored"] * 3
    assert [point.method for point in points] == names
    assert math.isnan(points[2].utility) and points[3].utility == 2.75
    assert trade_off_points(run, *figures, figure="debt") == []
