"""Checkpoints: when one is saved, which are deleted, and which are whole."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.stateful import Stateful
from training_runs import save_weights

from anchored.pretrain.job_config import Checkpoint
from anchored.pretrain.run.record import checkpoint_steps, is_complete
from anchored.pretrain.run.trainer import RunCheckpointer, stale_steps


class Counter(Stateful):
    value = 0

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state_dict):
        self.value = state_dict["value"]


@pytest.fixture
def checkpointer(tmp_path):
    """Builds a checkpointer of one process over a small model, in tmp_path/checkpoint."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    built = []

    def build(**settings):
        parts = {name: Counter() for name in ("optimizers", "lr_schedulers", "dataloader")}
        built.append(
            RunCheckpointer(
                Checkpoint(**{"keep_latest_k": 2, **settings}),
                model_parts=[torch.nn.Linear(3, 3)],
                states={"train_state": Counter()},
                sd_adapter=None,
                base_folder=str(tmp_path),
                **parts,
            )
        )
        return built[-1]

    yield build
    for one in built:
        one.close()  # waits for what is being deleted
    dist.destroy_process_group()


def saved_steps(tmp_path):
    return list(checkpoint_steps(tmp_path / "checkpoint"))


@pytest.mark.parametrize(
    ("steps", "milestone_interval", "expected"),
    [
        (range(5, 60, 5), 20, [5, 10, 15, 25, 30, 35, 45]),
        ([30, 10, 20], 0, [10]),
        ([10], 0, []),
    ],
)
def test_the_last_ones_and_the_milestones_stay(steps, milestone_interval, expected):
    assert stale_steps(steps, keep_latest=2, milestone_interval=milestone_interval) == expected


def test_steps_are_saved_by_interval_and_milestones_survive_the_purge(checkpointer, tmp_path):
    run = checkpointer(interval=2, milestone_interval=4)
    for step in range(1, 13):
        run.save(step)
    run.close()
    assert saved_steps(tmp_path) == [4, 8, 10, 12]
    assert not run.is_time_up  # without minutes no time is ever up


def test_minutes_without_a_save_make_one_due(checkpointer, tmp_path, monkeypatch):
    # Seconds that pass only when the test says so: a save may take longer than any interval.
    clock = SimpleNamespace(seconds=100.0)
    clock.monotonic = lambda: clock.seconds
    monkeypatch.setattr("anchored.pretrain.run.trainer.time", clock)
    run = checkpointer(interval=1000, interval_minutes=5)
    clock.seconds += 299
    assert not run.is_time_up
    clock.seconds += 1
    assert run.is_time_up
    run.save(7, is_due=run.is_time_up)
    assert saved_steps(tmp_path) == [7]
    assert not run.is_time_up  # the clock starts again at a save
    run.save(8, is_due=run.is_time_up)
    assert saved_steps(tmp_path) == [7]
    clock.seconds += 300
    assert run.is_time_up


def test_the_save_of_the_last_step_waits_for_an_asynchronous_one(checkpointer, tmp_path):
    run = checkpointer(interval=2, async_mode="async")
    run.save(2)
    run.save(3, last_step=True)
    folders = checkpoint_steps(tmp_path / "checkpoint")
    assert list(folders) == [2, 3]
    assert all(is_complete(folder) for folder in folders.values())


@pytest.mark.parametrize("pattern", [".metadata", "*.distcp"])
def test_a_shortened_or_lost_file_makes_a_checkpoint_incomplete(tmp_path, pattern):
    save_weights({"a": torch.arange(50.0), "b": "text"}, tmp_path / "step-10")
    (path,) = (tmp_path / "step-10").glob(pattern)
    assert is_complete(tmp_path / "step-10")
    path.write_bytes(path.read_bytes()[:-1])
    assert not is_complete(tmp_path / "step-10")
    path.unlink()  # the metadata are what a save that was killed leaves none of
    assert not is_complete(tmp_path / "step-10")


def test_steps_are_found_in_order_and_other_folders_ignored(tmp_path):
    for name in ("step-20", "step-3", "step-100", "old-step-4", "step-5.partial", "notes"):
        (tmp_path / name).mkdir()
    assert list(checkpoint_steps(tmp_path)) == [3, 20, 100]
    assert checkpoint_steps(tmp_path / "none") == {}
