"""run.json says what every start of a run was computed with, and keeps its id in W&B."""

import os
import sys
from importlib.machinery import ModuleSpec
from unittest.mock import Mock, call

import torch.distributed as dist
from training_runs import curve, save_steps

from anchored.pretrain.export import model_card
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.model.tinycomma import parallel_dims
from anchored.pretrain.run.metrics import RunMetrics
from anchored.pretrain.titan import CPU


def test_every_start_is_recorded_with_its_machine_and_what_changed(begin, tmp_path):
    _, record = begin(tmp_path / "run")
    (first,) = record.starts
    versions = first["environment"]["packages"]
    assert (first["step"], first["num_processes"], first["changes"]) == (0, 1, {})
    # Everything that was decided, defaults and infinite ones included.
    assert record.settings["optimizer.lr"] == 3e-3 and record.settings["optimizer.eps"] == 1e-8
    assert record.settings["data.max_epochs"] == "inf"

    save_steps(tmp_path / "run", 5)
    _, record = begin(tmp_path / "run", num_processes=2, metrics={"log_freq": 7})
    second = record.starts[1]
    assert (second["step"], second["num_processes"]) == (5, 2)
    assert second["changes"] == {"metrics.log_freq": [1, 7]}

    card = model_card(record, step=5, title="model")
    assert f"| 0 | 1 | cpu | {versions['torch']} | {versions['torchtitan']} |" in card
    assert "| 5 | 2 | cpu |" in card


def test_all_starts_are_one_run_in_wandb(begin, tmp_path, monkeypatch):
    # It only notes what it gets: nothing is sent.
    wandb, run = Mock(run=None, __spec__=ModuleSpec("wandb", None)), tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("torchtitan.components.metrics.device_module", CPU)
    monkeypatch.setattr("torchtitan.components.metrics.device_type", "cpu")
    for rank, first in ((0, 0), (1, 2), (0, 2)):  # of several processes the first one writes
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        _, record = begin(run, metrics={"enable_wandb": True})
        config = load_job_config(["--job.config_file", str(run.with_suffix(".toml"))])
        metrics = RunMetrics(config, parallel_dims(config, 1))
        metrics.num_flops_per_token = 1
        metrics.start(first, record.data)
        for step in (first + 1, first + 2):
            metrics.count(128, seconds=0.0)
            metrics.log(step, 2.5, 2.6, 1.0, {"lr": 0.1})
        metrics.close()
        save_steps(run, first + 2)
    assert [start.kwargs["id"] for start in wandb.init.call_args_list] == [record.wandb_id] * 2
    assert record.wandb_id and os.environ["WANDB_RESUME"] == "allow"
    named = [call("step", step_metric="step"), call("*", step_metric="step")]
    assert wandb.define_metric.call_args_list == named * 2
    # It drops figures of steps before its last: the step is a figure too.
    logs = [one.args[0] for one in wandb.log.call_args_list]
    assert [one["step"] for one in logs] == [1, 2, 3, 4]
    assert [one["n_tokens_seen"] for one in logs] == [128, 256, 384, 512]
    assert [line["step"] for line in curve(run)] == [1, 2, 3, 4]
