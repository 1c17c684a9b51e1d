"""Read ahead: a background thread that keeps a few items of an iterator ready."""

from collections.abc import Iterator
from contextlib import contextmanager
from queue import Full, Queue
from threading import Event, Thread
from typing import TypeVar

Item = TypeVar("Item")
_POLL_SECONDS = 0.1
_JOIN_SECONDS = 5.0


class _Failure:
    """What the iterator raised, on its way to the thread that reads it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _End:
    """The iterator is exhausted."""


@contextmanager
def prefetched(items: Iterator[Item], num_items: int) -> Iterator[Iterator[Item]]:
    """The same items in the same order, up to `num_items` of them read ahead.

    The thread ends with the context. An exception of the iterator is raised where its item would
    have come.
    Raises: ValueError if num_items is less than 1.
    """
    if num_items < 1:
        raise ValueError(f"num_items to prefetch must be at least 1, got {num_items}")
    queue: Queue[Item | _Failure | _End] = Queue(num_items)
    stopped = Event()
    thread = Thread(target=_fill, args=(queue, items, stopped), name="prefetch", daemon=True)
    thread.start()
    try:
        yield _drained(queue)
    finally:
        stopped.set()
        thread.join(_JOIN_SECONDS)  # not for ever: storage may hang, the interpreter be ending


def _fill(queue: "Queue[Item | _Failure | _End]", items: Iterator[Item], stopped: Event) -> None:
    try:
        for item in items:
            if not _put(queue, item, stopped):
                return
    except BaseException as error:
        # Not swallowed: the reader raises it again. A thread has nobody to raise it to.
        _put(queue, _Failure(error), stopped)
    else:
        _put(queue, _End(), stopped)


def _put(
    queue: "Queue[Item | _Failure | _End]", item: Item | _Failure | _End, stopped: Event
) -> bool:
    while not stopped.is_set():
        try:
            queue.put(item, timeout=_POLL_SECONDS)
            return True
        except Full:
            continue
    return False


def _drained(queue: "Queue[Item | _Failure | _End]") -> Iterator[Item]:
    while True:
        item = queue.get()
        if isinstance(item, _End):
            return
        if isinstance(item, _Failure):
            raise item.error
        yield item
