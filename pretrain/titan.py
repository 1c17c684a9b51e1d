"""All that is taken from torchtitan, which runs on the CPU where there is no accelerator.

torchtitan picks its device when it is first imported, "cuda" where torch finds none; so this is the
only module that imports it, and makes the CPU answer as its device module before.
"""

from types import SimpleNamespace

import torch
import torch._utils

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
from torchtitan.tools.profiling import maybe_enable_memory_snapshot, maybe_enable_profiling
from torchtitan.tools.utils import (
    GarbageCollection,
    device_module,
    device_type,
    get_peak_flops,
    set_default_dtype,
)
