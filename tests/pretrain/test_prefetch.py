"""Reading ahead changes neither items nor errors, and leaves no thread behind."""

import threading
import time
from itertools import count, islice

import pytest

from anchored.pretrain.prefetch import prefetched


def num_prefetch_threads():
    return sum(thread.name == "prefetch" for thread in threading.enumerate())


@pytest.mark.parametrize("num_items", [1, 3, 50])
def test_items_come_in_order_and_end(num_items):
    with prefetched(iter(range(20)), num_items) as items:
        assert list(items) == list(range(20))
    assert num_prefetch_threads() == 0


def test_only_so_many_items_are_read_ahead():
    read = []
    source = (read.append(number) or number for number in count())
    with prefetched(source, 3) as items:
        assert list(islice(items, 5)) == [0, 1, 2, 3, 4]
        deadline = time.monotonic() + 5
        while len(read) < 9 and time.monotonic() < deadline:  # 5 taken, 3 ready, 1 in hand
            time.sleep(0.001)
        time.sleep(0.02)
        assert len(read) == 9
    assert num_prefetch_threads() == 0


def test_an_error_is_raised_where_its_item_would_come():
    def failing():
        yield 1
        raise ValueError("corrupt token shard")

    with prefetched(failing(), 4) as items:
        assert next(items) == 1
        with pytest.raises(ValueError, match="corrupt token shard"):
            next(items)


def test_nothing_to_read_ahead_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"), prefetched(iter([]), 0):
        pass
