"""Training on this machine, a run without its machine, and the export of a checkpoint."""

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from anchored.configs.config_file import CONFIGS
from anchored.fields import check_least
from anchored.inputs import check_input

from ..files import check_new_folder
from ..option_types import TrainingFile

if TYPE_CHECKING:
    from torch.nn import Module

STAGE_1 = CONFIGS / "pretrain" / "tinycomma-1.8b-stage1.toml"
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class PretrainConfig:
    """Train a model on this machine: anchored pretrain --config FILE.toml

    One process trains, on one GPU or on the CPU. The same command goes on after an interruption.
    Ctrl-C stops after a step, with a checkpoint. Several GPUs, and single settings, need the
    program that this command starts:

    torchrun --nproc-per-node 8 -m anchored.pretrain --job.config_file FILE.toml --optimizer.lr 1e-3

    With --dry-run nothing is trained: it builds the model without memory for its weights (on
    torch's meta device), shards it with FSDP2 over fake processes as training would, and prints
    what a GPU holds and how long the steps take. That needs no GPU and no data, and measures
    nothing.
    """

    config: TrainingFile
    """Config of a training run; --list names the package's."""
    dry_run: bool = False
    """Estimate memory and time, and train nothing."""
    gpus: int = 8
    """GPUs of the run that --dry-run estimates."""
    peak_flops: float = 989e12
    """Dense peak of one GPU in bfloat16, in FLOP/s, for --dry-run; the default is that of an H200's
    data sheet."""
    mfu: float = 0.5
    """Share of the peak that training is assumed to reach by --dry-run."""

    def __post_init__(self) -> None:
        check_input(self.config)
        check_least(self, 1, "gpus", "peak_flops")
        if not 0 < self.mfu <= 1:
            raise ValueError(f"mfu must be in (0, 1], got {self.mfu}")


def run(config: PretrainConfig) -> int:
    """Train in this process, to the last step or to a signal, or print what training would take;
    returns the exit status."""
    if config.dry_run:
        return _dry_run(config)
    from anchored.pretrain.run.stop_signals import end_on_interrupt

    end_on_interrupt()
    import torch

    from anchored.pretrain import program

    if (num_gpus := torch.cuda.device_count()) > 1:
        line = f"torchrun --nproc-per-node {num_gpus} -m anchored.pretrain --job.config_file"
        print(
            f"anchored pretrain: one of {num_gpus} GPUs is used; for all of them: {line} "
            f"{shlex.quote(str(config.config))}",
            file=sys.stderr,
        )
    with program.prepared(["--job.config_file", str(config.config)]) as job:
        return program.run(job)


def _dry_run(config: PretrainConfig) -> int:
    """Print the model, its memory and the time; returns 0."""
    import torch
    import torch.distributed as dist

    from anchored.pretrain.job_config import load_job_config
    from anchored.pretrain.model.tinycomma import TinyComma, model_args, parallel_dims, parallelized
    from anchored.pretrain.run.memory import estimate_memory
    from anchored.pretrain.run.preflight import check_batch, check_settings

    job = load_job_config(["--job.config_file", str(config.config)])
    check_settings(job)
    check_batch(job, config.gpus)
    num_replicas = job.parallelism.data_parallel_replicate_degree
    with torch.device("meta"):
        model = TinyComma(model_args(job))
    memory = estimate_memory(job, model, num_shards=config.gpus // num_replicas)
    dist.init_process_group("fake", rank=0, world_size=config.gpus)
    model = parallelized(model, parallel_dims(job, config.gpus), job)
    print(f"{config.config.stem}: {_model_line(model, num_processes=config.gpus)}")
    dist.destroy_process_group()
    print(f"memory of a step on one GPU, estimated: {memory}")
    print(_time_line(job.training, config, model.flops_per_token()))
    print("nothing of this was measured")
    return 0


def _model_line(model: "Module", *, num_processes: int) -> str:
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


def _time_line(training: Any, config: PretrainConfig, flops_per_token: float) -> str:
    """The time of steps where every GPU reaches the stated share of its peak."""
    tokens_per_s = config.gpus * config.peak_flops * config.mfu / flops_per_token
    tokens_per_step = training.global_batch_size * training.seq_len
    seconds = tokens_per_step / tokens_per_s
    return (
        f"time at {config.mfu:.0%} MFU of {config.peak_flops / 1e12:g} TFLOP/s, "
        f"{flops_per_token:.4e} FLOPs a token: {tokens_per_s / config.gpus:,.0f} tokens/s "
        f"a GPU, {seconds:.1f} s a step of {tokens_per_step:,} tokens, "
        f"{seconds * training.steps / _SECONDS_PER_DAY:.2f} days for {training.steps:,} steps"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportConfig:
    """Export a checkpoint: anchored export --checkpoint STEP --tokenizer T --output MODEL

    Writes a Hugging Face folder with the weights, the tokenizer and a model card.
    """

    checkpoint: Path
    """Step folder of a run, such as runs/tinycomma/checkpoint/step-3219."""
    tokenizer: Path
    """Folder with the tokenizer.json that the run's data was tokenized by."""
    output: Path
    """New folder for the model."""
    max_position_embeddings: int = 0
    """Longest context that the model declares; 0 takes the length it was trained at."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of the stored weights."""

    def __post_init__(self) -> None:
        check_least(self, 0, "max_position_embeddings")
        for folder in (self.checkpoint, self.tokenizer):
            check_input(folder, "folder")


def export(config: ExportConfig) -> int:
    """Export as `config` says and print the folder; returns the exit status."""
    check_new_folder(config.output)
    from anchored.pretrain.export import export_checkpoint

    export_checkpoint(
        config.checkpoint,
        config.tokenizer,
        config.output,
        max_position_embeddings=config.max_position_embeddings,
        dtype=config.dtype,
    )
    print(config.output)
    return 0
