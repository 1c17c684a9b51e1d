"""The training loader: the same global batches for any number of processes, read ahead."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from .data_plan import DataPlan

Batch = tuple[Tensor, Tensor]


def read_batches(
    plan: DataPlan,
    *,
    dp_rank: int,
    dp_world_size: int,
    local_batch_size: int,
    first_sequence: int = 0,
    num_prefetched: int = 4,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """One rank's share of the plan's sequences, in order: endless batches.

    A round is one microbatch on every rank: local_batch_size * dp_world_size consecutive
    sequences, of which rank r takes the r-th slice. A step is a whole number of rounds, so step t
    always holds sequences t * G .. (t + 1) * G - 1, whatever the number of ranks, and a run is
    resumed from the number of its next sequence alone.
    first_sequence: of the first round. num_prefetched: batches read ahead of the training loop, at
    least 1. pin_memory: into memory that a GPU copies from by itself, while others are computed.
    Yields: inputs and labels, (local_batch_size, seq_len) int64 each. A thread reads ahead, and
    ends with the iteration; its error is raised where its batch would have come.
    """

    def batch(first: int) -> Batch:
        rows = [plan.tokens(first + row) for row in range(local_batch_size)]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return (inputs.pin_memory(), labels.pin_memory()) if pin_memory else (inputs, labels)

    rounds = count(first_sequence + dp_rank * local_batch_size, dp_world_size * local_batch_size)
    reader = ThreadPoolExecutor(1)
    batches = (reader.submit(batch, first) for first in rounds)
    try:
        ahead = deque(islice(batches, num_prefetched))
        while True:
            ahead.append(next(batches))
            yield ahead.popleft().result()
    finally:
        reader.shutdown(cancel_futures=True)
