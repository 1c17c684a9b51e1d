"""run.json says what every start of a run was computed with, and keeps its id in W&B."""

import json

import pytest
import torch
from training_runs import lines_of, save_weights, start_run

from anchored.environment import environment_record
from anchored.pretrain.export import model_card
from anchored.pretrain.run.record import RunRecord

# Other processes may change them meanwhile.
MACHINE = {"git_commit": "0123456789abcdef", "has_local_changes": True, "num_threads": 1}


def test_every_start_is_recorded_with_its_machine_and_what_changed(begin, tmp_path):
    _, record = begin(tmp_path / "run")
    (first,) = record.starts
    environment = json.loads(json.dumps(environment_record()))
    assert first["environment"] | MACHINE == environment | MACHINE
    assert {"torch", "torchtitan", "transformers"} <= environment["packages"].keys()
    assert {"cuda", "driver", "devices", "git_commit"} <= environment.keys()
    assert (first["step"], first["num_processes"], first["changes"]) == (0, 1, {})
    # Everything that was decided, defaults and infinite ones included.
    assert record.settings["optimizer.lr"] == 3e-3 and record.settings["optimizer.eps"] == 1e-8
    assert record.settings["data.max_epochs"] == "inf"
    assert len(record.settings["data.sources"]) == 3

    save_weights({"a": torch.zeros(3)}, tmp_path / "run" / "checkpoint" / "step-5")
    _, record = begin(tmp_path / "run", num_processes=2, metrics={"log_freq": 7})
    second = record.starts[1]
    assert (second["step"], second["num_processes"]) == (5, 2)
    assert second["changes"] == {"metrics.log_freq": [1, 7]}

    card = model_card(record, steps=[5], title="model")
    versions = environment["packages"]
    assert f"| 0 | 1 | cpu | {versions['torch']} | {versions['torchtitan']} |" in card
    assert "| 5 | 2 | cpu |" in card


@pytest.mark.slow
def test_starts_on_other_numbers_of_processes_are_one_run_in_wandb(
    write_config, tmp_path, monkeypatch
):
    notes, run = tmp_path / "notes.jsonl", tmp_path / "run"
    monkeypatch.setenv("WANDB_NOTES", str(notes))
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    for steps, num_processes in ((2, 2), (4, 1)):
        config_file = write_config(run, steps=steps, metrics={"enable_wandb": True})
        settings = {"num_processes": num_processes, "program": "wandb_pretrain"}
        for process in start_run(config_file, **settings):
            process.wait_for_success()
    calls = lines_of(notes)
    inits = [call for call in calls if call["call"] == "init"]
    wandb_id = RunRecord.read(run).wandb_id
    assert wandb_id and [one["id"] for one in inits] == [wandb_id] * 2
    assert all(one["resume"] == "allow" for one in inits)
    logs = [call for call in calls if call["call"] == "log"]
    assert [one["figures"]["step"] for one in logs] == [1, 2, 3, 4]
    assert [one["figures"]["n_tokens_seen"] for one in logs] == [128, 256, 384, 512]
    # W&B drops figures of steps that are behind its own, so the step is a figure as well.
    assert not any(one["options"] for one in logs)
    assert {"call": "define", "name": "*", "step_metric": "step"} in calls
    assert all("loss_metrics/global_avg_loss" in one["figures"] for one in logs)
