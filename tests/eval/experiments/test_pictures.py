"""Pictures that are drawn anew from what a quickstart recorded."""

import json
from pathlib import Path

import pytest

import anchored
from anchored.eval.experiments.results import DIVERGENCES, draw_pictures
from anchored.eval.figures import style

RECORDED = Path(anchored.__file__).parent / "docs" / "results" / "quickstart"


@pytest.fixture
def folder(tmp_path):
    """The recorded results alone, without their pictures."""
    for name in ("results.json", DIVERGENCES):
        (tmp_path / name).write_bytes((RECORDED / name).read_bytes())
    return tmp_path


def test_recorded_results_give_every_picture_in_both_formats(folder):
    proved = ["proved_quickstart_facts", "proved"]
    names = ["trade_off", "accuracy_quickstart_facts", *proved, "budgets", "divergences"]
    files = [folder / f"{name}{suffix}" for name in names for suffix in (".png", ".svg")]
    assert draw_pictures(folder) == files
    assert all(file.stat().st_size < 300_000 for file in files)  # they are kept in the repository
    assert "<!-- k=3 -->" in (folder / "trade_off.svg").read_text()


def test_what_a_run_did_not_record_or_could_not_define_is_not_drawn(folder, monkeypatch):
    results = json.loads((folder / "results.json").read_text())
    del results["trajectories"]
    for row in results["rows"]:
        row["ncr"] = {"mean": None, "std": None, "num_seeds": 3}
    (folder / "results.json").write_text(json.dumps(results))
    (folder / DIVERGENCES).unlink()
    monkeypatch.setattr(style, "SUFFIXES", (".svg",))
    names = [file.name for file in draw_pictures(folder)]
    proved = ["proved_quickstart_facts.svg", "proved.svg"]
    assert names == ["trade_off.svg", "accuracy_quickstart_facts.svg", *proved]
    assert "<!-- k=3 -->" not in (folder / "trade_off.svg").read_text()  # a text, as a comment


@pytest.mark.slow
def test_a_sweep_s_recorded_results_give_its_pictures(tmp_path):
    results = RECORDED.with_name("methods") / "results.json"
    (tmp_path / "results.json").write_bytes(results.read_bytes())
    names = ["methods", "ablations", "debt_window", "accuracy_quickstart_facts"]
    files = [tmp_path / f"{name}{suffix}" for name in names for suffix in (".png", ".svg")]
    assert draw_pictures(tmp_path) == files
    assert "<!-- TokenSwap -->" in (tmp_path / "methods.svg").read_text()
