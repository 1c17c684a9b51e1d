"""run.json says what every start of a run was computed with, and keeps its id in W&B."""

import json
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import torch
import torch.distributed as dist
from training_runs import lines_of, save_weights

from anchored.environment import environment_record
from anchored.pretrain.cpu_device import _CpuDeviceModule
from anchored.pretrain.export import model_card
from anchored.pretrain.job_config import load_job_config
from anchored.pretrain.model.tinycomma import parallel_dims
from anchored.pretrain.run.metrics import RunMetrics

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


class NotingWandb(ModuleType):
    """Weights & Biases that only notes what it is told: nothing is sent."""

    run = None

    def __init__(self):
        super().__init__("wandb")
        self.__spec__ = ModuleSpec("wandb", None)
        self.ids, self.metrics, self.logs = [], [], []

    def init(self, **options):
        self.ids.append((options["id"], os.environ["WANDB_RESUME"]))

    def define_metric(self, name, *, step_metric):
        self.metrics.append((name, step_metric))

    def log(self, figures):  # W&B drops figures of steps behind its own: the step is a figure too
        self.logs.append(figures)


def test_all_starts_are_one_run_in_wandb(begin, tmp_path, monkeypatch):
    wandb, run = NotingWandb(), tmp_path / "run"
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("torchtitan.components.metrics.device_module", _CpuDeviceModule())
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
        save_weights({"a": torch.zeros(3)}, run / "checkpoint" / f"step-{first + 2}")
    assert record.wandb_id and wandb.ids == [(record.wandb_id, "allow")] * 2
    assert wandb.metrics == [("step", "step"), ("*", "step")] * 2
    assert [one["step"] for one in wandb.logs] == [1, 2, 3, 4]
    assert [one["n_tokens_seen"] for one in wandb.logs] == [128, 256, 384, 512]
    assert all(one["loss_metrics/global_avg_loss"] == 2.5 for one in wandb.logs)
    assert [line["step"] for line in lines_of(run / "metrics.jsonl")] == [1, 2, 3, 4]
