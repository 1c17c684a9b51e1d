"""The training loader: the same global batches for any number of processes, read ahead."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from queue import Full, Queue
from threading import Event, Thread
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torchtitan.components.dataloader import BaseDataLoader

from .data_plan import DataPlan

DEFAULT_NUM_PREFETCHED = 4

Batch = tuple[dict[str, Tensor], Tensor]
Item = TypeVar("Item")
_POLL_SECONDS = 0.1
_JOIN_SECONDS = 5.0


class SequenceLoader(BaseDataLoader):
    """Yields one rank's share of the plan's sequences, in order.

    A round is one microbatch on every rank: local_batch_size * dp_world_size consecutive
    sequences, of which rank r takes the r-th slice. A step is a whole number of rounds, so step t
    always holds sequences t * G .. (t + 1) * G - 1, whatever the number of ranks. The state is
    the plan's hash and the next sequence, the same on all ranks.
    """

    def __init__(
        self,
        plan: DataPlan,
        *,
        dp_rank: int,
        dp_world_size: int,
        local_batch_size: int,
        with_document_ids: bool = False,
        num_prefetched: int = DEFAULT_NUM_PREFETCHED,
    ) -> None:
        """with_document_ids: add "document_ids" to the inputs, from which the mask is made that
        keeps documents apart. num_prefetched: batches read ahead of the training loop.
        """
        self._plan = plan
        self._plan_hash = plan.hash
        self._rank_offset = dp_rank * local_batch_size
        self._round_size = dp_world_size * local_batch_size
        self._local_batch_size = local_batch_size
        self._with_document_ids = with_document_ids
        self._num_prefetched = num_prefetched
        self.next_sequence = 0

    def __iter__(self) -> Iterator[Batch]:
        """Endless batches: {"input": (local_batch_size, seq_len) int64} and labels alike.

        "document_ids", where asked for, is as `document_ids` gives it.
        """
        with prefetched(self._batches(self.next_sequence), self._num_prefetched) as batches:
            for batch in batches:
                # The state is that of the batches handed out, not of those read ahead.
                self.next_sequence += self._round_size
                yield batch

    def _batches(self, next_sequence: int) -> Iterator[Batch]:
        for first in count(next_sequence + self._rank_offset, self._round_size):
            rows = [self._plan.tokens(first + row) for row in range(self._local_batch_size)]
            tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
            inputs = {"input": tokens[:, :-1].contiguous()}
            if self._with_document_ids:
                inputs["document_ids"] = document_ids(inputs["input"], bos_id=self._plan.bos_id)
            yield inputs, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {"plan_hash": self._plan_hash, "next_sequence": self.next_sequence}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Raises ValueError if the state was saved under another plan."""
        if state_dict["plan_hash"] != self._plan_hash:
            raise ValueError(
                f"the checkpoint was trained on data plan {state_dict['plan_hash']}, "
                f"this run has plan {self._plan_hash}"
            )
        self.next_sequence = state_dict["next_sequence"]


def document_ids(token_ids: Tensor, *, bos_id: int) -> Tensor:
    """Which document of its sequence each token belongs to.

    token_ids: (batch_size, seq_len) int64.
    Returns: (batch_size, seq_len) int64, 0 up to the first BOS that does not open the sequence.
    """
    is_start = token_ids == bos_id
    is_start[:, 0] = False
    return is_start.cumsum(dim=1)


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
