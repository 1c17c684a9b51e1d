"""Which checkpoints of a folder are whole."""

import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp

from anchored.pretrain.checkpoints import checkpoint_steps, is_complete


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "step-10"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that it saves from a single process
        dcp.save({"a": torch.arange(50.0), "b": "text"}, checkpoint_id=path, no_dist=True)
    return path


def test_a_finished_save_is_complete(checkpoint):
    assert is_complete(checkpoint)


def test_a_save_killed_before_its_metadata_is_incomplete(checkpoint):
    (checkpoint / ".metadata").unlink()
    assert not is_complete(checkpoint)


def test_a_shortened_or_lost_file_makes_it_incomplete(checkpoint):
    (data,) = checkpoint.glob("*.distcp")
    data.write_bytes(data.read_bytes()[:-1])
    assert not is_complete(checkpoint)
    data.unlink()
    assert not is_complete(checkpoint)


def test_metadata_cut_short_makes_it_incomplete(checkpoint):
    metadata = checkpoint / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:40])
    assert not is_complete(checkpoint)


def test_steps_are_found_in_order_and_other_folders_ignored(tmp_path):
    for name in ("step-20", "step-3", "step-100", "old-step-4", "step-5.partial", "notes"):
        (tmp_path / name).mkdir()
    assert list(checkpoint_steps(tmp_path)) == [3, 20, 100]
    assert checkpoint_steps(tmp_path / "none") == {}
