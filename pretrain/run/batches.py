"""Batches of a run: of training, read ahead, and of held-out text, with its loss."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..job_config import HeldoutConfig
from ..model.loss import IGNORE_INDEX
from ..plan.data_plan import DataPlan, check_source
from ..tokens.shards import Manifest, TokenShards

Batch = tuple[Tensor, Tensor]
BatchLoss = Callable[[Tensor, Tensor], Tensor]


def read_batches(
    plan: DataPlan, *, local_batch_size: int, first_sequence: int = 0, num_prefetched: int = 4
) -> Iterator[Batch]:
    """This process's share of the plan's sequences, in order: endless batches.

    A round is one microbatch on every rank: local_batch_size * world size consecutive sequences, of
    which rank r takes the r-th slice. A step is a whole number of rounds, so step t always holds
    sequences t * G .. (t + 1) * G - 1, whatever the number of ranks, and a run is resumed from the
    number of its next sequence alone.
    first_sequence: of the first round. num_prefetched: batches read ahead of the training loop, at
    least 1; with CUDA in memory that a GPU copies from by itself, while others are computed.
    Yields: inputs and labels, (local_batch_size, seq_len) int64 each. A thread reads ahead, and
    ends with the iteration; its error is raised where its batch would have come.
    """

    def batch(start: int) -> Batch:
        rows = [plan.tokens(start + row) for row in range(local_batch_size)]
        tokens = torch.from_numpy(np.stack(rows).astype(np.int64))
        inputs, labels = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        return (inputs.pin_memory(), labels.pin_memory()) if is_pinned else (inputs, labels)

    is_pinned = torch.cuda.is_available()
    first = first_sequence + dist.get_rank() * local_batch_size
    rounds = count(first, dist.get_world_size() * local_batch_size)
    reader = ThreadPoolExecutor(1)
    batches = (reader.submit(batch, start) for start in rounds)
    try:
        ahead = deque(islice(batches, num_prefetched))
        while True:
            ahead.append(next(batches))
            yield ahead.popleft().result()
    finally:
        reader.shutdown(cancel_futures=True)


def check_heldout(config: HeldoutConfig, *, trained: DataPlan) -> None:
    """Raises ValueError if a source is missing, too short or of another tokenizer."""
    for source in config.sources:
        manifest = TokenShards.open(source.path).manifest
        check_source(f"heldout source {source.name}", manifest, trained, seq_len=trained.seq_len)


def check_not_trained_on(config: HeldoutConfig, trained: Mapping[str, str]) -> None:
    """Raises ValueError if a held-out source has a shard in common with the training data.

    trained: names of the sources of this run and of those before it, by the sha256 of a shard.
    """
    for source in config.sources:
        for shard in Manifest.read(Path(source.path)).shards:
            if name := trained.get(shard.tokens_sha256):
                raise ValueError(
                    f"heldout source {source.name} is trained on: source {name} holds the tokens "
                    f"of its {shard.tokens_file} too"
                )


class HeldoutLoss:
    """Cross entropy of the first windows of each held-out source, the same on any number of
    processes.

    Every process takes part in the same number of forwards, as sharded weights demand; rows
    beyond the last window carry no labels.
    """

    def __init__(
        self, config: HeldoutConfig, *, seq_len: int, batch_size: int, device: torch.device
    ) -> None:
        """batch_size: rows of a forward on one process. The sources have passed `check_heldout`."""
        self._config, self._device = config, device
        self._seq_len, self._batch_size = seq_len, batch_size
        self._shards = {source.name: TokenShards.open(source.path) for source in config.sources}

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """True if `step` is measured: the first one, so that what fails shows in minutes."""
        return bool(self._shards) and (step == 1 or is_last or step % self._config.interval == 0)

    def measure(self, batch_loss: BatchLoss) -> dict[str, float]:
        """Mean loss of each source, in nats per token; on all processes together.

        batch_loss: summed cross entropy of (batch_size, seq_len) inputs and labels on `device`.
        """
        totals = torch.zeros(len(self._shards), dtype=torch.float64, device=self._device)
        num_windows = []
        for index, shards in enumerate(self._shards.values()):
            most = (shards.num_tokens - 1) // self._seq_len
            num_windows.append(min(self._config.num_sequences, most))
            for inputs, labels in self._batches(shards, num_windows[-1]):
                totals[index] += batch_loss(inputs.to(self._device), labels.to(self._device))
        dist.all_reduce(totals)
        means = [
            total / (n * self._seq_len)
            for total, n in zip(totals.tolist(), num_windows, strict=True)
        ]
        return dict(zip(self._shards, means, strict=True))

    def _batches(self, shards: TokenShards, num_windows: int) -> Iterator[Batch]:
        round_size = dist.get_world_size() * self._batch_size
        first_row = dist.get_rank() * self._batch_size
        for start in range(first_row, first_row + num_windows, round_size):
            inputs = torch.zeros(self._batch_size, self._seq_len, dtype=torch.int64)
            labels = torch.full_like(inputs, IGNORE_INDEX)
            for row in range(min(self._batch_size, num_windows - start)):
                window = shards.tokens((start + row) * self._seq_len, self._seq_len + 1)
                tokens = torch.from_numpy(window.astype(np.int64))
                inputs[row], labels[row] = tokens[:-1], tokens[1:]
            yield inputs, labels
