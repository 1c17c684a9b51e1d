"""How many workers a process starts for the input files that it shares with others."""

import pytest

from anchored.pretrain.tokens.workers import worker_counts


@pytest.mark.parametrize(
    ("num_files", "requested", "expected"),
    [
        (100, 0, (8, 1)),
        (3, 0, (3, 2)),  # spare cores become threads of the tokenizer
        (1, 0, (1, 8)),
        (100, 4, (4, 2)),
        (100, 16, (16, 1)),
    ],
)
def test_cores_are_used_for_files_first(monkeypatch, num_files, requested, expected):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(16))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")  # two processes of this machine share its cores
    assert worker_counts(num_files, requested) == expected
