"""Processes that torchrun started, which share lm-eval's documents and gather what they found."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

LONGEST_WAIT = timedelta(days=7)
"""For the slowest process: lm-eval waits for it after each kind of request."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This process among those that divide the requests; by itself unless it joined others.

    What is gathered are counts and results, so it goes through the host whatever device the models
    are on.
    """

    rank: int = 0
    world_size: int = 1
    group: dist.ProcessGroup | None = None
    """Of those who gather; None for torch's own."""

    @classmethod
    def joined(cls) -> "Ranks":
        """All processes of torchrun, which meet here; one where there is no torchrun."""
        world_size = num_processes()
        if world_size == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("gloo", timeout=LONGEST_WAIT)
            return cls(dist.get_rank(), world_size)
        # lm-eval's own models bring a group, which may know of GPUs alone.
        group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        return cls(dist.get_rank(), world_size, group)

    def all_gather(self, tensor: Tensor) -> Tensor:
        """(world_size, ...) tensors of one shape, one of each process, by rank."""
        if self.world_size == 1:
            return tensor
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(gathered, tensor, group=self.group)
        return torch.stack(gathered)

    def gather_object(self, value: Any, dst: int = 0) -> list[Any] | None:
        """What each process has, by rank, on process `dst`; None on the others."""
        if self.world_size == 1:
            return [value]
        gathered = [None] * self.world_size if self.rank == dst else None
        dist.gather_object(value, gathered, dst=dst, group=self.group)
        return gathered

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            dist.barrier(group=self.group)


def num_processes() -> int:
    """That torchrun started, this one among them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device() -> str:
    """The device of this process among those of its machine; the CPU where there is no CUDA."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
