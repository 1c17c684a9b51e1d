"""What a machine offers to a run, and whether it can hold it: GPUs, their memory, and the disk."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from ..job_config import Checkpoint, JobConfig
from ..plan.stages import CHECKPOINT_BYTES_PER_PARAMETER
from .memory import GIB, MemoryEstimate

# The allocator's fragments, NCCL and the CUDA context take the rest.
_USABLE_MEMORY_FRACTION = 0.92
_GB = 10**9


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """One machine as its first process sees it."""

    num_processes: int
    """Of the run, on this machine."""
    num_gpus: int
    gpu_name: str
    """Empty without a GPU."""
    gpu_memory_bytes: int
    """Of one GPU; 0 without one."""
    free_disk_bytes: int
    """Where the run's folder is."""

    @classmethod
    def here(cls, folder: Path) -> "Machine":
        """This machine, for a run that writes to an existing folder."""
        num_gpus = torch.cuda.device_count()
        properties = torch.cuda.get_device_properties(0) if num_gpus else None
        return cls(
            num_processes=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            num_gpus=num_gpus,
            gpu_name=properties.name if properties else "",
            gpu_memory_bytes=properties.total_memory if properties else 0,
            free_disk_bytes=shutil.disk_usage(folder).free,
        )


def check_gpus(config: JobConfig, machine: Machine) -> None:
    """Raises ValueError if the run needs GPUs that this machine has not."""
    if config.job.needs_gpu and machine.num_gpus == 0:
        raise ValueError("job.needs_gpu is true, and torch sees no GPU on this machine")
    if 0 < machine.num_gpus < machine.num_processes:
        raise ValueError(
            f"{machine.num_processes} processes were started on a machine of {machine.num_gpus} "
            "GPUs: each needs one of its own (torchrun --nproc-per-node)"
        )


def check_memory(config: JobConfig, machine: Machine, estimate: MemoryEstimate) -> None:
    """Raises ValueError if a step would not fit; nothing is checked without a GPU."""
    usable = _USABLE_MEMORY_FRACTION * machine.gpu_memory_bytes
    if config.job.check_memory and 0 < usable < estimate.total:
        raise ValueError(
            f"a step needs about {estimate} on a GPU, and {machine.gpu_name} has "
            f"{machine.gpu_memory_bytes / GIB:.1f} GiB: lower training.local_batch_size or "
            "loss.chunk_tokens (job.check_memory = false overrules this estimate)"
        )


def check_disk(
    config: JobConfig, machine: Machine, *, num_parameters: int, num_existing: int
) -> None:
    """Raises ValueError if the checkpoints that the run will keep do not fit.

    num_existing: checkpoints already in the folder, whose space is taken.
    """
    checkpoint_bytes = CHECKPOINT_BYTES_PER_PARAMETER * num_parameters
    num_kept = num_kept_checkpoints(config.checkpoint, num_steps=config.training.steps)
    needed = max(0, num_kept - num_existing) * checkpoint_bytes
    if needed > machine.free_disk_bytes:
        raise ValueError(
            f"{num_kept} checkpoints of {checkpoint_bytes / _GB:.1f} GB will be kept, which takes "
            f"{needed / _GB:.1f} GB more in job.dump_folder {config.job.dump_folder}, and "
            f"{machine.free_disk_bytes / _GB:.1f} GB are free: lower checkpoint.keep_latest_k"
        )


def num_kept_checkpoints(config: Checkpoint, *, num_steps: int) -> int:
    """Most checkpoints that lie on disk at a time: the last ones, one in flight, milestones."""
    num_saves = -(-num_steps // config.interval)
    num_latest = config.keep_latest_k + 1 if config.keep_latest_k else num_saves
    if not config.interval_minutes:
        num_latest = min(num_latest, num_saves)
    milestones = num_steps // config.milestone_interval if config.milestone_interval else 0
    return num_latest + milestones
