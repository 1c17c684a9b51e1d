"""Held-out loss: cross entropy on token shards that are never trained on, source by source."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..job_config import HeldoutConfig
from ..model.loss import IGNORE_INDEX
from ..tokens.shards import Encoded, Manifest, TokenShards, encoding_difference

BatchLoss = Callable[[Tensor, Tensor], Tensor]


def check_heldout(config: HeldoutConfig, *, seq_len: int, trained: Encoded) -> None:
    """Raises ValueError if a source is missing, too short or of another tokenizer."""
    for source in config.sources:
        shards = TokenShards.open(source.path)
        if difference := encoding_difference(shards.manifest, trained):
            raise ValueError(
                f"heldout source {source.name} and the data were tokenized differently: "
                f"{difference}"
            )
        if shards.num_tokens <= seq_len:
            raise ValueError(
                f"heldout source {source.name} has {shards.num_tokens} tokens, too few for one "
                f"sequence of {seq_len} and its labels"
            )


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
    """Measures the same windows on any number of processes.

    Every process takes part in the same number of forwards, as sharded weights demand; rows
    beyond the last window carry no labels.
    """

    def __init__(
        self, config: HeldoutConfig, *, seq_len: int, batch_size: int, device: torch.device
    ) -> None:
        """batch_size: rows of a forward on one process. The sources have passed `check_heldout`."""
        self._config, self._device = config, device
        self._seq_len, self._batch_size = seq_len, batch_size
        self._shards = [TokenShards.open(source.path) for source in config.sources]

    def is_due(self, step: int, *, is_last: bool) -> bool:
        """True if `step` is measured: the first one, so that what fails shows in minutes."""
        is_due = step == 1 or is_last or step % self._config.interval == 0
        return bool(self._config.sources) and is_due

    def measure(self, batch_loss: BatchLoss) -> dict[str, float]:
        """Mean loss of each source, in nats per token; on all processes together.

        batch_loss: summed cross entropy of (batch_size, seq_len) inputs and labels on `device`.
        """
        totals = torch.zeros(len(self._shards), dtype=torch.float64, device=self._device)
        for index, shards in enumerate(self._shards):
            for inputs, labels in self._batches(shards):
                totals[index] += batch_loss(inputs.to(self._device), labels.to(self._device))
        dist.all_reduce(totals)
        return {
            source.name: total / (self._num_windows(shards) * self._seq_len)
            for source, shards, total in zip(
                self._config.sources, self._shards, totals.tolist(), strict=True
            )
        }

    def _num_windows(self, shards: TokenShards) -> int:
        return min(self._config.num_sequences, (shards.num_tokens - 1) // self._seq_len)

    def _batches(self, shards: TokenShards) -> Iterator[tuple[Tensor, Tensor]]:
        num_windows = self._num_windows(shards)
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
