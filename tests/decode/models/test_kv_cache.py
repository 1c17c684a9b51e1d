"""The row cache keeps what its pointers cover, within its bound, and nothing of freed rows."""

import pytest
import torch

from anchored.decode.models.kv_cache import RowCache

CPU = torch.device("cpu")
HEADS, HEAD_DIM = 2, 3


def states(rows: int, columns: int, value: float) -> torch.Tensor:
    return torch.full((rows, HEADS, columns, HEAD_DIM), value)


def filled(lengths: list[int], max_length: int = 20) -> RowCache:
    """A cache of one layer whose row r holds r + 1 everywhere."""
    cache = RowCache(1, len(lengths), max_length)
    for row, length in enumerate(lengths):
        cache.prepare([row], length, CPU)
        cache.update(states(1, length, row + 1.0), states(1, length, -row - 1.0), 0)
        cache.advance([row], [length])
    return cache


def test_rows_are_read_back_up_to_the_longest():
    cache = filled([2, 5])
    cache.prepare([0, 1], 1, CPU)
    keys, values = cache.update(states(2, 1, 9.0), states(2, 1, 9.0), 0)
    assert keys.shape == values.shape == (2, HEADS, 6, HEAD_DIM)
    assert keys[0, 0, :, 0].tolist() == [1, 1, 9, 0, 0, 0]
    assert values[1, 0, :, 0].tolist() == [-2, -2, -2, -2, -2, 9]


def test_some_rows_are_read_alone():
    cache = filled([2, 5, 3])
    cache.prepare([2], 1, CPU)
    keys, _ = cache.update(states(1, 1, 9.0), states(1, 1, 9.0), 0)
    assert keys[0, 0, :, 0].tolist() == [3, 3, 3, 9]


def test_a_rolled_back_column_is_written_over():
    cache = filled([4])
    cache.roll_back(0, 1)
    cache.prepare([0], 1, CPU)
    keys, _ = cache.update(states(1, 1, 9.0), states(1, 1, 9.0), 0)
    assert keys[0, 0, :, 0].tolist() == [1, 9]


@pytest.mark.parametrize("length", [-1, 5])
def test_a_row_goes_back_only_to_what_it_holds(length):
    with pytest.raises(ValueError, match=f"row 0 holds 4 columns, it cannot go back to {length}"):
        filled([4]).roll_back(0, length)


def test_a_freed_row_holds_no_trace():
    cache = filled([2, 5])
    cache.layers[0].keys[1, :, 3] = torch.nan
    cache.free(1)
    assert cache.lengths == [2, 0]
    assert not cache.layers[0].keys[1].any() and not cache.layers[0].values[1].any()
    assert cache.layers[0].keys[0].any()


def test_storage_grows_with_the_longest_row_and_never_beyond_its_bound():
    cache = RowCache(1, 2, 20)
    capacities = []
    for _ in range(20):
        cache.prepare([0], 1, CPU)
        cache.update(states(1, 1, 1.0), states(1, 1, 1.0), 0)
        cache.advance([0], [1])
        capacities.append(cache.layers[0].keys.shape[2])
    assert capacities == sorted(capacities) and capacities[-1] == 20
    assert len(set(capacities)) < 10
    with pytest.raises(ValueError, match="the cache holds 20 columns, 21 are needed"):
        cache.prepare([0], 1, CPU)
