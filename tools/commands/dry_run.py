"""A run without its machine."""

from typing import Any

from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module

from anchored.pretrain.cpu_device import use_cpu_without_accelerator

from .training.training_options import DryRunConfig

_SECONDS_PER_DAY = 86_400


def run(config: DryRunConfig) -> int:
    """Print the model, its memory and the time; returns 0."""
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


def model_line(model: Module, *, num_processes: int) -> str:
    """Its size, whole and on one process, and how it is divided."""
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
