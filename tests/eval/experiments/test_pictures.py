"""Pictures that are drawn anew from what a quickstart recorded."""

import shutil
from pathlib import Path

import pytest

import anchored
from anchored.eval.experiments.results import DIVERGENCES, draw_pictures
from anchored.eval.figures import style

RECORDED = Path(anchored.__file__).parent / "docs" / "results" / "quickstart"


@pytest.fixture
def folder(tmp_path):
    """The recorded results alone, without their pictures."""
    (tmp_path / "run").mkdir()
    for name in ("results.json", DIVERGENCES):
        shutil.copy(RECORDED / name, tmp_path / "run")
    return tmp_path / "run"


def test_recorded_results_give_every_picture_in_both_formats(folder, tmp_path, monkeypatch):
    # 1. Of a quickstart.
    proved = ["proved_quickstart_facts", "proved"]
    names = ["trade_off", "accuracy_quickstart_facts", *proved, "budgets", "divergences"]
    files = [folder / f"{name}{suffix}" for name in names for suffix in (".png", ".svg")]
    assert draw_pictures(folder) == files
    assert all(file.stat().st_size < 300_000 for file in files)  # they are kept in the repository
    assert "<!-- k=3 -->" in (folder / "trade_off.svg").read_text()
    # 2. Of a sweep, a picture of its methods and each kind of its ablations.
    shutil.copy(RECORDED.with_name("methods") / "results.json", tmp_path)
    names = ["methods", "ablations", "debt_window", "accuracy_quickstart_facts"]
    monkeypatch.setattr(style, "SUFFIXES", (".svg",))
    assert draw_pictures(tmp_path) == [tmp_path / f"{name}.svg" for name in names]
    assert "<!-- TokenSwap -->" in (tmp_path / "methods.svg").read_text()
