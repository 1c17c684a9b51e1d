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
