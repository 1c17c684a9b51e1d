"""How many processes and threads tokenise."""

import pytest

from anchored.pretrain.tokenize_workers import WorkerCounts


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
def test_cores_are_used_for_files_first(num_cores, num_files, requested, expected):
    counts = WorkerCounts.of(num_cores=num_cores, num_files=num_files, requested=requested)
    assert (counts.num_workers, counts.num_threads) == expected
