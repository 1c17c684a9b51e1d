"""run.json says what every start of a run was computed with."""

import sys
from importlib.machinery import ModuleSpec
from types import SimpleNamespace

from training_runs import save_steps

from anchored.pretrain.export import model_card


def test_every_start_is_recorded_with_its_machine_and_what_changed(begin, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(__spec__=ModuleSpec("wandb", None)))
    _, before = begin(tmp_path / "run", metrics={"enable_wandb": True})
    (first,) = before.starts
    versions = first["environment"]["packages"]
    assert (first["step"], first["num_processes"], first["changes"]) == (0, 1, {})
    # Everything that was decided, defaults and infinite ones included.
    assert before.settings["optimizer.lr"] == 3e-3 and before.settings["optimizer.eps"] == 1e-8
    assert before.settings["data.max_epochs"] == "inf"

    save_steps(tmp_path / "run", 5)
    _, record = begin(
        tmp_path / "run", num_processes=2, metrics={"enable_wandb": True, "log_freq": 7}
    )
    second = record.starts[1]
    assert (second["step"], second["num_processes"]) == (5, 2)
    assert second["changes"] == {"metrics.log_freq": [1, 7]}
    assert record.wandb_id == before.wandb_id != ""  # all starts are one run there

    card = model_card(record, step=5, title="model")
    assert f"| 0 | 1 | cpu | {versions['torch']} | {versions['torchtitan']} |" in card
    assert "| 5 | 2 | cpu |" in card
