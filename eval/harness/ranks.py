"""Processes that torchrun started, which share lm-eval's documents and gather what they found."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

LONGEST_WAIT = timedelta(days=7)
"""For the slowest process: lm-eval waits for it after each kind of request."""


def process_group() -> dist.ProcessGroup | None:
    """All processes of torchrun, which meet here; None where this one is alone.

    What is gathered are counts and results, so it goes through the host whatever device the models
    are on; a group that lm-eval's own models have made may know of GPUs alone.
    """
    if num_processes() == 1:
        return None
    if not dist.is_initialized():
        dist.init_process_group("gloo", timeout=LONGEST_WAIT)
    return dist.new_group(backend="gloo", timeout=LONGEST_WAIT)


def num_processes() -> int:
    """That torchrun started, this one among them."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def own_device() -> str:
    """The device of this process among those of its machine; the CPU where there is no CUDA."""
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
