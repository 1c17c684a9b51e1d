"""All that is taken from torchtitan, which runs on the CPU where there is no accelerator.

torchtitan picks its device when it is first imported, "cuda" where torch finds none; so this is the
only module that imports it, and makes the CPU answer as its device module before.
"""

from types import SimpleNamespace
from typing import Any

import torch
import torch._utils


class CpuDeviceModule:
    """torch.cpu, completed by the calls that torchtitan makes of torch.cuda."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def current_device(self) -> int:
        return 0  # torch.cpu answers "cpu", and barriers want an index

    def get_device_name(self, device: Any = None) -> str:
        return "cpu"

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        # Only percentages in the log are taken of it; 1 GiB means "not known".
        return SimpleNamespace(total_memory=1 << 30)

    def memory_stats(self, device: Any = None) -> dict[str, int]:
        return {}

    def reset_peak_memory_stats(self) -> None: ...

    def empty_cache(self) -> None: ...


if torch._utils._get_available_device_type() is None:
    _CPU = CpuDeviceModule()
    torch._utils._get_available_device_type = lambda: "cpu"
    torch._utils._get_device_module = lambda name: _CPU  # type: ignore[assignment]

from torchtitan.components.loss import build_cross_entropy_loss
from torchtitan.components.lr_scheduler import build_lr_schedulers
from torchtitan.components.metrics import BaseLogger, MetricsProcessor, WandBLogger
from torchtitan.components.optimizer import build_optimizers
from torchtitan.config import ActivationCheckpoint, Job, JobConfig, Metrics, Model
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import (
    clip_grad_norm_,
    maybe_enable_amp,
    set_determinism,
    set_pg_timeouts,
)
from torchtitan.models.attention import FlexAttentionWrapper
from torchtitan.models.llama3 import (
    Llama3StateDictAdapter,
    Transformer,
    TransformerModelArgs,
    parallelize_llama,
)
from torchtitan.models.llama3.model.args import RoPEScalingArgs
from torchtitan.models.llama3.model.model import Attention, precompute_freqs_cis
from torchtitan.protocols.model_converter import build_model_converters
from torchtitan.tools.profiling import (
    maybe_enable_memory_snapshot,
    maybe_enable_profiling,
)
from torchtitan.tools.utils import (
    GarbageCollection,
    device_module,
    device_type,
    get_peak_flops,
    set_default_dtype,
)
