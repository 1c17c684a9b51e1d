"""A run's model as training would shard it, without memory for its weights and without GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from torchtitan.distributed import ParallelDims

from .job_config import JobConfig
from .model import TinyCommaArgs
from .train_spec import train_spec


@contextmanager
def meta_model(
    config: JobConfig, args: TinyCommaArgs, *, num_processes: int
) -> Iterator[torch.nn.Module]:
    """The model on the meta device, its weights divided among fake processes; this is the first.

    args: the model's shape, updated from the config. num_processes: a multiple of the config's
    replicas. Raises: RuntimeError where a process group exists already.
    """
    if dist.is_initialized():
        raise RuntimeError("a process group exists: fake processes need one of their own")
    dist.init_process_group("fake", rank=0, world_size=num_processes, store=FakeStore())
    try:
        num_replicas = config.parallelism.data_parallel_replicate_degree
        dims = ParallelDims(
            dp_replicate=num_replicas,
            dp_shard=num_processes // num_replicas,
            **dict.fromkeys(("cp", "tp", "pp", "ep", "etp"), 1),
            world_size=num_processes,
        )
        spec = train_spec()
        with torch.device("meta"):
            yield spec.parallelize_fn(spec.model_cls(args), dims, config)
    finally:
        dist.destroy_process_group()
