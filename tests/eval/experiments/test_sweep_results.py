"""Tables and choices of a sweep, from figures made by hand."""

import math

import pytest

from anchored.eval.copying.metrics import METRICS
from anchored.eval.experiments import results
from anchored.eval.experiments.experiment import Experiment, Setting
from anchored.eval.experiments.plan import sweep_settings
from anchored.eval.experiments.sweep import Method, Sweep

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


def row(setting: Setting, ncr: float, bits: float) -> dict:
    """As `summarize` makes it."""
    figure = {"mean": 0.25, "std": 0.125, "num_seeds": 3}
    return {
        "setting": setting.name,
        **dict.fromkeys(METRICS, figure),
        "ncr": {"mean": ncr, "std": 0.01, "num_seeds": 3, "num_metrics": 6},
        "bits_per_byte/mixture": bits,
        "bits_per_byte/extra": bits,
        "gap_closed": math.nan if math.isinf(bits) else 0.5,
        "spent": 3.0,
        "bound": None,
        "method": setting.method,
    }


@pytest.fixture
def rows() -> list[dict]:
    """CP-Fuse never protects; of the two budgets that do, the larger is worth more."""
    figures = {
        "p_s": (1.0, 3.0),
        "p_r": (0.0, 2.0),
        "CP-Fuse": (0.7, math.inf),
        "Anchored, k=1": (0.9, 2.75),
        "Anchored, k=2": (0.75, 2.5),
        "Anchored, k=4": (0.74, 2.25),
    }
    return [row(setting, *figures[setting.name]) for setting in sweep_settings(SWEEP)]


def test_tables_have_all_settings_and_the_best_protected_one_of_each_method(
    rows, tmp_path, monkeypatch
):
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
    monkeypatch.setattr(results, "summarize", lambda _: rows)
    monkeypatch.setattr(results, "write_results", lambda *_: None)
    results.write_sweep_results(experiment, SWEEP)
    assert (tmp_path / "high_protection.md").read_text().splitlines() == [
        "| method | setting | bits per byte, extra | gap closed | NCR |",
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
    table = (tmp_path / "table.md").read_text()
    titles = table.splitlines()[0].strip("| ").split(" | ")
    assert titles[8:] == [
        "bits per byte, mixture",
        "bits per byte, extra",
        "gap closed",
        "spent",
        "bound",
    ]
    assert r"CP-Fuse & 0.250 (0.125) & 0.250 (0.125) &" in (tmp_path / "table.tex").read_text()
    assert "| inf | inf | - |" in table
