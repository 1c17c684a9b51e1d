"""The training loader: the same global batches for any number of processes, read ahead."""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import numpy as np
import torch
from torch import Tensor

from .data_plan import DataPlan

Batch = tuple[dict[str, Tensor], Tensor]


def read_batches(
    plan: DataPlan,
    *,
    dp_rank: int,
    dp_world_size: int,
    local_batch_size: int,
    first_sequence: int = 0,
    with_document_ids: bool = False,
    num_prefetched: int = 4,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """One rank's share of the plan's sequences, in order: endless batches.

    A round is one microbatch on every rank: local_batch_size * dp_world_size consecutive
    sequences, of which rank r takes the r-th slice. A step is a whole number of rounds, so step t
    always holds sequences t * G .. (t + 1) * G - 1, whatever the number of ranks, and a run is
    resumed from the number of its next sequence alone.
    first_sequence: of the first round. with_document_ids: add "document_ids" to the inputs, from
    which the mask is made that keeps documents apart. num_prefetched: batches read ahead of the
    training loop, at least 1. pin_memory: into memory that a GPU copies from by itself, while
    others are computed.
    Yields: {"input": (local_batch_size, seq_len) int64} and labels alike. A thread reads ahead, and
    ends with the iteration; its error is raised where its batch would have come.
    """

    def batch(first: int) -> Batch:
        rows = [plan.tokens(first + row) for row in range(local_batch_size)]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        inputs, labels = {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()
        if with_document_ids:
            inputs["document_ids"] = document_ids(inputs["input"], bos_id=plan.bos_id)
        if pin_memory:
            inputs = {name: tensor.pin_memory() for name, tensor in inputs.items()}
            labels = labels.pin_memory()
        return inputs, labels

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


def document_ids(token_ids: Tensor, *, bos_id: int) -> Tensor:
    """Which document of its sequence each token belongs to.

    token_ids: (batch_size, seq_len) int64.
    Returns: (batch_size, seq_len) int64, 0 up to the first BOS that does not open the sequence.
    """
    is_start = token_ids == bos_id
    is_start[:, 0] = False
    return is_start.cumsum(dim=1)
