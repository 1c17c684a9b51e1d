"""Checkpoints: when one is saved, which are deleted and which whole, curves up to them, and a disk
that is full."""

import errno
import random
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import FileSystemWriter
from training_runs import save_weights

from anchored.pretrain.job_config import Checkpoint
from anchored.pretrain.run.checkpoints import SEAL_NAME, Checkpointer, checkpoint_steps, damage
from anchored.pretrain.run.metrics import StepLog


@pytest.fixture
def checkpointer(tmp_path):
    """Builds a checkpointer of one process over a small model, in tmp_path/checkpoint."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    built = []

    def build(**settings):
        config = Checkpoint(**{"keep_latest_k": 2, **settings})
        built.append(Checkpointer(config, tmp_path, model=torch.nn.Linear(3, 3), states={}))
        return built[-1]

    yield build
    for one in built:
        one.close()  # waits for what is being deleted
    dist.destroy_process_group()


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only when the test says so: a save may take longer than any interval."""
    clock = SimpleNamespace(seconds=100.0)
    clock.monotonic = lambda: clock.seconds
    monkeypatch.setattr("anchored.pretrain.run.checkpoints.time", clock)
    return clock


def saved_steps(tmp_path):
    return list(checkpoint_steps(tmp_path / "checkpoint"))


def test_steps_are_saved_by_interval_and_milestones_survive_the_purge(checkpointer, tmp_path):
    run = checkpointer(interval=2, milestone_interval=4)
    for step in range(1, 13):
        run.save(step)
    run.close()
    assert saved_steps(tmp_path) == [4, 8, 10, 12]
    assert not run.is_time_up  # without minutes no time is ever up


def test_minutes_without_a_save_make_one_due(checkpointer, tmp_path, clock):
    run = checkpointer(interval=1000, interval_minutes=5)
    clock.seconds += 299
    assert not run.is_time_up
    clock.seconds += 1
    assert run.is_time_up
    run.save(7, is_due=run.is_time_up)
    assert not run.is_time_up  # the clock starts again at a save
    run.save(8, is_due=run.is_time_up)
    assert saved_steps(tmp_path) == [7]


def test_the_save_of_the_last_step_waits_for_an_asynchronous_one(checkpointer, tmp_path):
    run = checkpointer(interval=2, async_mode="async")
    run.save(2)
    run.save(3, is_last=True)
    folders = checkpoint_steps(tmp_path / "checkpoint")
    assert list(folders) == [2, 3]
    assert not any(map(damage, folders.values()))


def test_whole_lines_of_a_curve_up_to_the_checkpoint_are_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    StepLog(path).keep_until(10)
    assert not path.exists()  # a run without metrics starts its file later
    # Later ones are about to be trained again; a kill or a crash may leave others torn.
    path.write_bytes(b'{"step": 2}\n\x00\xff\n{"step": 10}\n{"step": 11}\n{"step": 9}')
    StepLog(path).keep_until(10)
    assert path.read_text() == '{"step": 2}\n{"step": 10}\n'


def test_every_flipped_bit_and_lost_byte_is_damage(tmp_path):
    saved = tmp_path / "step-10"
    save_weights({"a": torch.arange(50.0), "b": "text"}, saved)
    # In data, metadata and the hashes of the seal: none may come through, or as another error.
    generator = random.Random(0)
    for number in range(40):
        path = saved / (".metadata", "__0_0.distcp", SEAL_NAME)[number % 3]
        whole = path.read_bytes()
        flipped, first = bytearray(whole), whole.find(b'"files"') + 1  # 0 but in the seal
        flipped[generator.randrange(first, len(whole) - 8)] ^= 1 << generator.randrange(8)
        for torn in (flipped, whole[:-3]):
            path.write_bytes(torn)
            assert damage(saved) and "\n" not in damage(saved)
        path.unlink()
        assert path.name in damage(saved)
        path.write_bytes(whole)
    assert damage(saved) is None


@pytest.mark.parametrize("async_mode", ["disabled", "async"])
def test_a_save_on_a_full_disk_is_tried_again_and_deletes_no_other(
    checkpointer, tmp_path, monkeypatch, clock, async_mode, caplog
):
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    run = checkpointer(interval=2, async_mode=async_mode)
    run.save(2)
    run.save(4)
    run.wait_for_saves()
    with monkeypatch.context() as patch:
        patch.setattr(FileSystemWriter, "write_data", full)
        for step in (6, 8, 10):
            run.save(step)
        run.wait_for_saves()
    assert saved_steps(tmp_path) == [2, 4] and not run.is_time_up
    assert "step 10 could not be saved ([Errno 28] No space left on device)" in caplog.text
    assert "\n" not in run.failure
    clock.seconds += 60
    assert run.is_time_up
    run.save(11, is_due=run.is_time_up)
    run.wait_for_saves()
    assert run.failure is None and not run.is_time_up
    assert 11 in saved_steps(tmp_path)
    assert not any(map(damage, checkpoint_steps(tmp_path / "checkpoint").values()))
