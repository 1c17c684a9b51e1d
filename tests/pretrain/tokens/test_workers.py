"""Which share of the input files a process takes, and how many workers it starts."""

import pytest

from anchored.pretrain.tokens.workers import FileShare, worker_counts

SLURM = {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_MIN": "1", "SLURM_ARRAY_TASK_COUNT": "8"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1, 1)),  # alone a process does everything
        (SLURM | TORCHRUN, (5, 16, 8)),
        (SLURM, (6, 8, 1)),
        (SLURM | {"SLURM_ARRAY_TASK_STEP": "2"}, (3, 8, 1)),
    ],
)
def test_variables_of_torchrun_go_before_those_of_a_slurm_array(environment, expected):
    assert FileShare.of(environment) == FileShare(*expected)


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
        FileShare.of(environment)


@pytest.mark.parametrize(
    ("num_cores", "num_files", "requested", "expected"),
    [
        (8, 100, 0, (8, 1)),
        (8, 3, 0, (3, 2)),  # spare cores become threads of the tokenizer
        (8, 1, 0, (1, 8)),
        (8, 100, 4, (4, 2)),
        (2, 100, 4, (4, 1)),
        (8, 0, 0, (1, 8)),
    ],
)
def test_cores_are_used_for_files_first(monkeypatch, num_cores, num_files, requested, expected):
    # Two processes of this machine share its cores.
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(2 * num_cores))
    share = FileShare(0, 4, num_local=2)
    assert worker_counts(share, num_files=num_files, requested=requested) == expected
