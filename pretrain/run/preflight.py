"""Checks before training: everything that would fail later, or train the wrong thing, fails now."""

import json
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import torch

from ...environment import environment_record
from ..job_config import Checkpoint, JobConfig, place_of
from ..model.tinycomma import TinyComma, flavors, model_args, parameter_count
from ..plan.data_plan import DataPlan, epochs_read
from ..plan.stages import check_epochs
from ..tokens.shards import check_shards
from ..tokens.tokenizer import TOKENIZER_NAME, check_tokenizer
from .batches import check_heldout, check_not_trained_on
from .checkpoints import BYTES_PER_PARAMETER, checkpoint_steps
from .memory import GIB, MemoryEstimate, estimate_memory
from .start import StartingPoint, copy_fork, find_starting_point, record_of, resolved_settings
from .trainer import global_batch_size

# The allocator's fragments, NCCL and the CUDA context take the rest.
_USABLE_MEMORY_FRACTION = 0.92
_GB = 10**9
_FLOAT8_CAPABILITY = (8, 9)  # Ada; Hopper is 9.0
_READ: Final = {
    "training": {
        *("local_batch_size", "global_batch_size", "seq_len", "steps", "max_norm", "dtype"),
        *("mixed_precision_param", "mixed_precision_reduce", "gc_freq", "gc_debug"),
    },
    # All of it is in the data, as a model of this size needs no other.
    "parallelism": {
        *("data_parallel_replicate_degree", "data_parallel_shard_degree"),
        *("fsdp_reshard_after_forward", "enable_fsdp_symm_mem"),
    },
    "compile": {"enable", "components", "backend"},
    "comm": {
        *("init_timeout_seconds", "train_timeout_seconds"),
        *("trace_buf_size", "save_traces_folder", "save_traces_file_prefix"),
    },
    "debug": {"seed", "deterministic", "deterministic_warn_only", "detect_anomaly"},
}
"""Settings that a run reads, by section of torchtitan; any other must keep its default."""


def check_run(config: JobConfig, *, num_processes: int) -> list[str]:
    """Refuse a run that cannot work, and write its record; returns remarks for the user.

    Called by the first process only, which has locked the dump folder, before the processes meet.
    Incomplete checkpoints of this very run are set aside.
    Raises: ValueError or FileNotFoundError with one line.
    """
    # 1. What settings and machine say by themselves.
    check_settings(config)
    check_batch(config, num_processes)
    _check_gpus(config)
    # 2. The data: of one tokenizer, and long enough.
    plan = _checked_plan(config)
    # 3. Where the run starts; with that it is known how often each source will have been read.
    start = find_starting_point(config, record_of(config, plan, num_processes=num_processes))
    _check_reading(config, start)
    # 4. Room for a step and for the checkpoints; checksums last, as they may take a minute.
    with torch.device("meta"):
        model = TinyComma(model_args(config))
    num_shards = num_processes // config.parallelism.data_parallel_replicate_degree
    check_memory(config, estimate_memory(config, model, num_shards=num_shards))
    _check_disk(config, num_parameters=parameter_count(model))
    if config.data.verify_checksums:
        paths = [source.path for source in config.data.sources]
        paths += [source.path for source in config.heldout.sources]
        check_shards(list(map(Path, paths)))
    # 5. The record. Of a fork the copy is made after it: what was refused before, or is killed in
    # between, begins again as if it had never been started.
    settings, environment = resolved_settings(config), environment_record()
    record = start.record.started(
        start.step, settings, num_processes=num_processes, environment=environment
    )
    if config.metrics.enable_wandb and not record.wandb_id:
        wandb_id = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        record = replace(record, wandb_id=wandb_id)
    record.write(Path(config.job.dump_folder))
    if start.forked:
        copy_fork(config, start.forked)
    return list(_remarks(start))


def _checked_plan(config: JobConfig) -> DataPlan:
    """The data plan; ValueError for data or a tokenizer that is missing, or is another one."""
    if config.model.tokenizer:
        place_of(config, "model.tokenizer", config.model.tokenizer)
    for section in ("data", "heldout"):
        for source in getattr(config, section).sources:
            place_of(config, f"{section}.sources, {source.name}", source.path)
    plan = DataPlan.open(config.data, seq_len=config.training.seq_len)
    if config.model.tokenizer:
        check_tokenizer(Path(config.model.tokenizer) / TOKENIZER_NAME, plan.tokenizer_sha256)
    check_heldout(config.heldout, trained=plan)
    return plan


def _check_reading(config: JobConfig, start: StartingPoint) -> None:
    """Raises ValueError if nothing is left to train, or tokens are read too often or held out."""
    # A finished run that is started again does nothing; more than that would be a mistake.
    num_steps = config.training.steps
    if start.step > num_steps or (start.forked and start.step == num_steps):
        raise ValueError(
            f"training.steps {num_steps} leaves nothing to train after the checkpoint of step "
            f"{start.step}{f', {start.forked}' if start.forked else ''}"
        )
    readings = [
        (source["name"], source["tokens_sha256"], epochs_read(run.data, step)[source["name"]])
        for run, step in start.record.stages(num_steps)
        for source in run.data["sources"]
    ]
    check_epochs(readings, config.data.max_epochs)
    trained = {shard: name for name, shards, _ in readings for shard in shards}
    check_not_trained_on(config.heldout, trained)


def _remarks(start: StartingPoint) -> Iterator[str]:
    if start.remark:
        yield start.remark
    sources = start.record.data["sources"]
    if unsearched := [source["name"] for source in sources if "decontamination" not in source]:
        yield (
            "not searched for texts that must not be trained on (`anchored decontaminate`): "
            f"{', '.join(unsearched)}"
        )


def check_settings(config: JobConfig) -> None:
    """Raises ValueError with one line about the first setting that cannot work."""
    for section, read in _READ.items():
        settings, defaults = (asdict(getattr(one, section)) for one in (config, JobConfig()))
        for name in settings.keys() - read:
            if (value := settings[name]) != defaults[name]:
                raise ValueError(
                    f"{section}.{name} must be {json.dumps(defaults[name])}, as no run here knows "
                    f"another value, got {json.dumps(value)}"
                )
    if config.model.flavor not in flavors():
        names = ", ".join(flavors())
        raise ValueError(f"model.flavor must be one of {names}, got {config.model.flavor}")
    if config.debug.seed is None:
        raise ValueError("debug.seed is not set: the initial weights are drawn from it")
    if config.model.converters and "output" not in config.quantize.linear.float8.filter_fqns:
        raise ValueError(
            'quantize.linear.float8.filter_fqns must hold "output": the vocabulary projection '
            "stays in bfloat16"
        )
    saves = config.checkpoint
    if saves.milestone_interval % saves.interval:
        raise ValueError(
            f"checkpoint.milestone_interval {saves.milestone_interval} is not a multiple of "
            f"checkpoint.interval {saves.interval}: some milestones would never be saved"
        )
    if config.activation_checkpoint.mode == "memory_budget" and not config.compile.enable:
        raise ValueError("activation_checkpoint.mode memory_budget needs compile.enable")
    _check_schedule(config)


def _check_schedule(config: JobConfig) -> None:
    """Outside of its steps a schedule gives rates outside the settings, below zero even."""
    schedule, steps = config.lr_scheduler, config.training.steps
    total = schedule.total_steps or steps
    if total < steps:
        raise ValueError(
            f"lr_scheduler.total_steps {total} is below training.steps {steps}: the schedule must "
            "be as long as the run, or longer"
        )
    decay, warmup = schedule.decay_ratio or 0.0, schedule.warmup_steps
    if warmup + round(total * decay) > total:
        raise ValueError(
            f"lr_scheduler.warmup_steps {warmup} and decay_ratio {decay} are more than the "
            f"schedule of {total} steps"
        )


def check_batch(config: JobConfig, num_processes: int) -> None:
    """Raises ValueError if a step cannot be shared equally among that many processes."""
    num_replicas = config.parallelism.data_parallel_replicate_degree
    num_shards = config.parallelism.data_parallel_shard_degree
    if num_processes % num_replicas or num_shards not in (-1, num_processes // num_replicas):
        raise ValueError(
            f"parallelism: {num_replicas} replicas of {num_shards} shards (-1: the rest) do not "
            f"make {num_processes} processes"
        )
    batch_size = global_batch_size(config, num_processes)
    if batch_size % (config.training.local_batch_size * num_processes):
        raise ValueError(
            "training.global_batch_size must be a multiple of local_batch_size times the number of "
            f"processes, got {batch_size} and {config.training.local_batch_size} * {num_processes}"
        )


def _check_gpus(config: JobConfig) -> None:
    if config.job.needs_gpu and not torch.cuda.device_count():
        raise ValueError("job.needs_gpu is true, and torch sees no GPU on this machine")
    if not config.model.converters or config.quantize.linear.float8.emulate:
        return
    if not torch.cuda.device_count() or torch.cuda.get_device_capability() < _FLOAT8_CAPABILITY:
        raise ValueError(
            "model.converters: products in float8 need a GPU of compute capability 8.9 or higher "
            "(quantize.linear.float8.emulate computes their values on any machine)"
        )


def check_memory(config: JobConfig, estimate: MemoryEstimate) -> None:
    """Raises ValueError if a step would not fit; nothing is checked without a GPU."""
    if not (config.job.check_memory and torch.cuda.device_count()):
        return
    gpu = torch.cuda.get_device_properties(0)
    if estimate.total > _USABLE_MEMORY_FRACTION * gpu.total_memory:
        raise ValueError(
            f"a step needs about {estimate} on a GPU, and {gpu.name} has "
            f"{gpu.total_memory / GIB:.1f} GiB: lower training.local_batch_size or "
            "loss.chunk_tokens (job.check_memory = false overrules this estimate)"
        )


def _check_disk(config: JobConfig, *, num_parameters: int) -> None:
    """The checkpoints that the run will keep must fit next to those that are there already."""
    free = shutil.disk_usage(config.job.dump_folder).free
    folder = Path(config.job.dump_folder) / config.checkpoint.folder
    checkpoint_bytes = BYTES_PER_PARAMETER * num_parameters
    num_kept = _num_kept_checkpoints(config.checkpoint, num_steps=config.training.steps)
    needed = max(0, num_kept - len(checkpoint_steps(folder))) * checkpoint_bytes
    if needed > free:
        raise ValueError(
            f"{num_kept} checkpoints of {checkpoint_bytes / _GB:.1f} GB will be kept, which takes "
            f"{needed / _GB:.1f} GB more in job.dump_folder {config.job.dump_folder}, and "
            f"{free / _GB:.1f} GB are free: lower checkpoint.keep_latest_k"
        )


def _num_kept_checkpoints(config: Checkpoint, *, num_steps: int) -> int:
    """Most that lie on disk at a time: the last ones, one in flight, milestones."""
    num_saves = 1 + -(-num_steps // config.interval)  # the first step's too
    num_latest = config.keep_latest_k + 1 if config.keep_latest_k else num_saves
    if not config.interval_minutes:
        num_latest = min(num_latest, num_saves)
    return num_latest + (num_steps // config.milestone_interval if config.milestone_interval else 0)
