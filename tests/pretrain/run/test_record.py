"""run.json says what every start of a run was computed with, and keeps its id in W&B."""

import json

import pytest
import torch
from training_runs import save_weights, start_run

from anchored.environment import environment_record
from anchored.pretrain.export import model_card
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.run.preflight import check_run
from anchored.pretrain.run.record import RunRecord
from anchored.pretrain.run.rollback import roll_back

# Other processes may change them meanwhile.
MACHINE = {"git_commit": "0123456789abcdef", "has_local_changes": True, "num_threads": 1}


@pytest.fixture
def start(write_config, tmp_path):
    """Starts a run, in so far as its preflight does, and reads its record."""

    def begin(*, num_processes=1, **sections):
        path = write_config(tmp_path / "run", **sections)
        check_run(load_job_config(["--job.config_file", str(path)]), num_processes=num_processes)
        return RunRecord.read(tmp_path / "run")

    return begin


def test_every_start_is_recorded_with_its_machine_and_what_changed(start, tmp_path):
    record = start()
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
    record = start(num_processes=2, metrics={"log_freq": 7})
    second = record.starts[1]
    assert (second["step"], second["num_processes"]) == (5, 2)
    assert second["changes"] == {"metrics.log_freq": [1, 7]}
    roll_back(tmp_path / "run", step=5, settings={"optimizer.lr": "1e-3"})
    record = start(optimizer={"lr": 1e-3})
    assert record.starts[2]["changes"] == {"metrics.log_freq": [7, 1], "optimizer.lr": [3e-3, 1e-3]}
    assert [fork["step"] for fork in record.forks] == [5]

    card = model_card(record, steps=[5], title="model")
    versions = environment["packages"]
    assert f"| 0 | 1 | cpu | {versions['torch']} | {versions['torchtitan']} |" in card
    assert "| 5 | 2 | cpu |" in card


def test_a_record_without_starts_can_be_read(start, tmp_path):
    start()
    path = tmp_path / "run" / "run.json"
    table = json.loads(path.read_text())
    for name in ("settings", "starts", "wandb_id"):
        del table[name]
    path.write_text(json.dumps(table))
    record = RunRecord.read(tmp_path / "run")
    assert (record.starts, record.wandb_id) == ([], "")
    assert "torchtitan |" not in model_card(record, steps=[5], title="model")


@pytest.mark.slow
def test_starts_and_forks_of_a_run_are_one_run_in_wandb(write_config, tmp_path, monkeypatch):
    notes, run = tmp_path / "notes.jsonl", tmp_path / "run"
    monkeypatch.setenv("WANDB_NOTES", str(notes))
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    settings = {"steps": 4, "checkpoint": {"interval": 2}, "metrics": {"enable_wandb": True}}
    config_file = write_config(run, **settings)
    for _ in range(2):
        (process,) = start_run(config_file, program="wandb_pretrain")
        process.wait_for_success()
        if len(RunRecord.read(run).starts) == 1:
            roll_back(run, step=2)
    calls = [json.loads(line) for line in notes.read_text().splitlines()]
    inits = [call for call in calls if call["call"] == "init"]
    wandb_id = RunRecord.read(run).wandb_id
    assert wandb_id and [one["id"] for one in inits] == [wandb_id] * 2
    assert all(one["resume"] == "allow" for one in inits)
    logs = [call for call in calls if call["call"] == "log"]
    # W&B would drop steps 3 and 4 of the fork, did it count them as its own steps.
    assert [one["figures"]["step"] for one in logs] == [1, 2, 3, 4, 3, 4]
    assert not any(one["options"] for one in logs)
    assert {"call": "define", "name": "*", "step_metric": "step"} in calls
    assert all("loss_metrics/global_avg_loss" in one["figures"] for one in logs)
