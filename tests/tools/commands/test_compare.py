"""anchored compare: benchmarks of several models, recorded, tabled and drawn."""

import json

import pytest
from command_line import run
from local_tasks import GENERATION, MULTIPLE_CHOICE, write_task

pytest.importorskip("lm_eval")

CONFIG = """
title = "Two ways"
tasks = "tasks"
limit = 3
device = "cpu"

[[models]]
label = "safe alone"
model = "{safe}"
settings = {{ dtype = "float32" }}

[[models]]
label = "pair"
safe = "{safe}"
risky = "{risky}"
settings = {{ rule = "safe_only" }}

[[benchmarks]]
label = "Bells"
variants = [{{ task = "bells", num_fewshot = 0 }}, {{ task = "chimes", metric = "acc_norm" }}]

[[benchmarks]]
label = "Code"
variants = [{{ task = "tides", metric = "exact_match" }}]
runs_code = true
"""


@pytest.fixture
def config(pair_folders, tmp_path, monkeypatch):
    """The comparison's file; nothing of it needs the Hub."""
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    # It asks several programs what this machine is, each time.
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)
    (tmp_path / "tasks").mkdir()
    code = GENERATION | {"unsafe_code": True}
    for name, task in (("bells", MULTIPLE_CHOICE), ("chimes", MULTIPLE_CHOICE), ("tides", code)):
        write_task(tmp_path / "tasks", name, task)
    safe, risky = pair_folders
    file = tmp_path / "two.toml"
    file.write_text(CONFIG.format(safe=safe, risky=risky))
    return file


def compared(capsys, config, *words):
    output = config.parent / "out"
    out, _ = run(capsys, "compare", str(config), "--output", str(output), *words)
    rows = json.loads((output / "results.json").read_text())["rows"]
    return out, {(row["model"], row["benchmark"]): row for row in rows}


def last_line(capsys, config) -> str:
    """On stderr, where the models cannot be compared."""
    words = ("compare", str(config), "--output", str(config.parent / "out"))
    return run(capsys, *words, status=1)[1].splitlines()[-1]


def test_models_are_compared_by_the_best_variant_and_go_on_where_they_were(config, capsys):
    out, rows = compared(capsys, config)
    assert "left out without --confirm-run-unsafe-code: Code" in out
    alone, pair = (rows[name, "Bells"] for name in ("safe alone", "pair"))
    assert alone == pair | {"model": "safe alone"}  # one distribution, by two programs
    assert rows["pair", "Code"]["value"] is None
    answers = config.parent / "out" / "answers" / "pair"
    by_task = {file.stem: json.loads(file.read_text()) for file in answers.glob("*.json")}
    assert by_task.keys() == {"bells-0", "chimes"}
    figures = [by_task["bells-0"]["figures"]["acc"], by_task["chimes"]["figures"]["acc_norm"]]
    assert pair["value"] == max(figures)
    table = (config.parent / "out" / "table.md").read_text()
    assert table.startswith("Two ways\n\n| model | Bells | Code | mean |")
    assert f"| pair | {pair['value']:.3f} +- " in table
    assert (config.parent / "out" / "scores.png").stat().st_size > 5000

    times = {path: path.stat().st_mtime_ns for path in answers.parent.rglob("*.json")}
    assert compared(capsys, config)[1] == rows
    assert {path: path.stat().st_mtime_ns for path in times} == times
    config.write_text(config.read_text().replace("limit = 3", "limit = 2"))
    assert "made with other settings (limit was 3 and is now 2)" in last_line(capsys, config)
    (config.parent / "out").rename(config.parent / "before")
    config.write_text(config.read_text().replace('metric = "acc_norm"', 'metric = "bleu"'))
    assert "chimes has no metric 'bleu', only" in last_line(capsys, config)
