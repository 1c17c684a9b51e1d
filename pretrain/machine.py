"""What a machine offers to a run."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch


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
