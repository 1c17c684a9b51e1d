"""A run without its machine."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anchored.configs.config_file import CONFIGS
from anchored.inputs import check_input, check_least

from .words import ConfigFile

if TYPE_CHECKING:
    from torch.nn import Module

STAGE_1 = CONFIGS / "pretrain" / "tinycomma-1.8b-stage1.toml"
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRunConfig:
    """Estimate a run without its machine: anchored dry-run --config configs/pretrain/FILE.toml

    Builds the model without memory for its weights (on torch's meta device), shards it with FSDP2
    over fake processes as training would, and prints what a GPU holds and how long the steps take.
    Needs no GPU and no data, and measures nothing.
    """

    config: ConfigFile = STAGE_1
    """Config of a training run."""
    gpus: int = 8
    """GPUs of the run."""
    peak_flops: float = 989e12
    """Dense peak of one GPU in bfloat16, in FLOP/s; that of an H200's data sheet unless given."""
    mfu: float = 0.5
    """Share of the peak that training is assumed to reach."""

    def __post_init__(self) -> None:
        check_input(self.config)
        check_least(self, 1, "gpus", "peak_flops")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu must be in (0, 1], got {self.mfu}")


def run(config: DryRunConfig) -> int:
    """Print the model, its memory and the time; returns 0."""
    from anchored.pretrain.cpu_device import use_cpu_without_accelerator

    use_cpu_without_accelerator()
    # Not before: these import torchtitan, which binds its device at that moment.
    import torch
    import torch.distributed as dist

    from anchored.pretrain.job_config import load_job_config
    from anchored.pretrain.model.tinycomma import TinyComma, model_args, parallel_dims, parallelized
    from anchored.pretrain.run.memory import estimate_memory
    from anchored.pretrain.run.preflight import check_batch, check_settings

    job = load_job_config(["--job.config_file", str(config.config)])
    check_settings(job)
    check_batch(job, config.gpus)
    args = model_args(job)
    num_replicas = job.parallelism.data_parallel_replicate_degree
    with torch.device("meta"):
        model = TinyComma(args)
    memory = estimate_memory(job, model, num_shards=config.gpus // num_replicas)
    dist.init_process_group("fake", rank=0, world_size=config.gpus)
    model = parallelized(model, parallel_dims(job, config.gpus), job)
    _, flops_per_token = args.get_nparams_and_flops(model, job.training.seq_len)
    print(f"{config.config.stem}: {model_line(model, num_processes=config.gpus)}")
    dist.destroy_process_group()
    print(f"memory of a step on one GPU, estimated: {memory}")
    print(time_line(job.training, config, flops_per_token))
    print("nothing of this was measured")
    return 0


def model_line(model: "Module", *, num_processes: int) -> str:
    """Its size, whole and on one process, and how it is divided."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    weights = [weight for weight in model.parameters() if isinstance(weight, DTensor)]
    num_weights = sum(weight.numel() for weight in model.parameters())
    num_local = sum(weight.to_local().numel() for weight in weights)
    num_modules = sum(isinstance(module, FSDPModule) for module in model.modules())
    placements = " or ".join(sorted({str(weight.placements) for weight in weights}))
    return (
        f"{num_weights:,} parameters, {num_local:,} of them on each of {num_processes} "
        f"processes, in {num_modules} modules with placements {placements}"
    )


def time_line(training: Any, config: DryRunConfig, flops_per_token: float) -> str:
    """How long steps take where every GPU reaches the stated share of its peak."""
    tokens_per_s = config.gpus * config.peak_flops * config.mfu / flops_per_token
    tokens_per_step = training.global_batch_size * training.seq_len
    seconds = tokens_per_step / tokens_per_s
    return (
        f"time at {config.mfu:.0%} MFU of {config.peak_flops / 1e12:g} TFLOP/s, "
        f"{flops_per_token:.4e} FLOPs a token: {tokens_per_s / config.gpus:,.0f} tokens/s "
        f"a GPU, {seconds:.1f} s a step of {tokens_per_step:,} tokens, "
        f"{seconds * training.steps / _SECONDS_PER_DAY:.2f} days for {training.steps:,} steps"
    )
