"""The share of the work that torchrun's or Slurm's variables name."""

import pytest

from anchored.pretrain.rank import Rank


def test_alone_a_process_does_everything():
    assert Rank.of({}) == Rank(0, 1, 1)


def test_torchrun_variables_are_read_and_go_first():
    slurm = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_COUNT": "4"}
    torchrun = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}
    assert Rank.of(slurm | torchrun) == Rank(5, 16, 8)


def test_a_slurm_array_may_start_anywhere_and_take_steps():
    slurm = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"}
    assert Rank.of(slurm) == Rank(6, 8, 1)
    assert Rank.of(slurm | {"SLURM_ARRAY_TASK_STEP": "2"}) == Rank(3, 8, 1)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE must be a number, got ''"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a number, got 'x'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"rank must be in \[0, 2\), got 2"),
    ],
)
def test_variables_that_make_no_sense_are_refused(environment, message):
    with pytest.raises(ValueError, match=message):
        Rank.of(environment)
