"""All that is taken from torchtitan, which runs on the CPU where there is no accelerator.

torchtitan picks its device when it is first imported, "cuda" where torch finds none; so this is the
only module that imports it, and makes the CPU answer as its device module before.
"""

from types import SimpleNamespace

import torch
import torch._utils
import torch.distributed as dist

CPU = SimpleNamespace(
    **vars(torch.cpu)
    | {
        "current_device": lambda: 0,  # torch.cpu answers "cpu", and barriers want an index
        "get_device_name": lambda device=None: "cpu",
        # Only percentages in the log are taken of it; 1 GiB means "not known".
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=1 << 30),
        "memory_stats": lambda device=None: {},
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
    }
)
"""torch.cpu, completed by the calls that torchtitan makes of torch.cuda."""

if torch._utils._get_available_device_type() is None:
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda name: CPU  # type: ignore[assignment]
if not hasattr(dist, "set_timeout"):  # torch 2.13 has it under a private name
    dist.set_timeout = dist.distributed_c10d._set_pg_timeout  # type: ignore[attr-defined]

from torchtitan.components.metrics import BaseLogger, MetricsProcessor, WandBLogger
from torchtitan.components.optimizer import OptimizersContainer, ParamGroupConfig
from torchtitan.components.optimizer.lr_scheduler import LRSchedulersContainer
from torchtitan.config import (
    CommConfig,
    CompileConfig,
    DebugConfig,
    ParallelismConfig,
    TrainingConfig,
)
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.activation_checkpoint import FullAC, MemoryBudgetAC, SelectiveAC
from torchtitan.distributed.utils import clip_grad_norm_, set_determinism, set_pg_timeouts
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.tools.profiler import Profiler
from torchtitan.tools.utils import GarbageCollection, device_module, device_type, get_peak_flops
