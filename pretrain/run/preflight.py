"""Checks before training: everything that would fail later, or train the wrong thing, fails now."""

import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import torch

from ...environment import environment_record
from ..job_config import Checkpoint, JobConfig, place_of
from ..model.tinycomma import TinyComma, flavors, model_args
from ..plan.data_plan import DataPlan, epochs_read
from ..plan.stages import check_epochs
from ..tokens.shards import check_shards
from ..tokens.tokenizer import TOKENIZER_NAME, check_tokenizer
from .batches import check_heldout, check_not_trained_on
from .checkpoints import BYTES_PER_PARAMETER, checkpoint_steps
from .memory import GIB, MemoryEstimate, estimate_memory, parameter_count
from .start import StartingPoint, copy_fork, find_starting_point, record_of, resolved_settings
from .trainer import global_batch_size

_FLOAT8 = "quantize.linear.float8"
# The allocator's fragments, NCCL and the CUDA context take the rest.
_USABLE_MEMORY_FRACTION = 0.92
_GB = 10**9
_UNUSED_SECTIONS = ("validation", "fault_tolerance", "experimental", "memory_estimation")


def check_run(config: JobConfig, *, num_processes: int) -> list[str]:
    """Refuse a run that cannot work, and write its record; returns remarks for the user.

    Called by the first process only, which has locked the dump folder, before the processes meet.
    Incomplete checkpoints of this very run are set aside. Raises: ValueError with one line.
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
    return list(_remarks(config, start))


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


def _remarks(config: JobConfig, start: StartingPoint) -> Iterator[str]:
    if start.remark:
        yield start.remark
    steps, warmup = config.training.steps, config.lr_scheduler.warmup_steps
    if steps < warmup:
        yield (
            f"training.steps {steps} are fewer than lr_scheduler.warmup_steps {warmup}: the "
            "learning rate never reaches optimizer.lr"
        )
    sources = start.record.data["sources"]
    if unsearched := [source["name"] for source in sources if "decontamination" not in source]:
        yield (
            "not searched for texts that must not be trained on (`anchored decontaminate`): "
            f"{', '.join(unsearched)}"
        )


def check_settings(config: JobConfig) -> None:
    """Raises ValueError with one line about the first setting that cannot work."""
    checks = (_model_refusals(config), _optimizer_refusals(config), _interval_refusals(config))
    for is_wrong, message in chain.from_iterable(checks):
        if is_wrong:
            raise ValueError(message)


_Refusals = Iterator[tuple[bool, str]]
"""Pairs of whether a setting cannot work, and why, one after another."""


def _model_refusals(config: JobConfig) -> _Refusals:
    yield (
        config.model.name != "tinycomma" or config.model.flavor not in flavors(),
        f"model.flavor must be one of {', '.join(flavors())} of model.name tinycomma, "
        f"got {config.model.flavor} of {config.model.name}",
    )
    seed = "debug.seed is not set: the initial weights are drawn from it"
    yield config.debug.seed is None, seed
    for kind in ("tensor", "pipeline", "context", "expert"):
        degree = getattr(config.parallelism, f"{kind}_parallel_degree")
        yield (
            degree != 1,
            f"parallelism.{kind}_parallel_degree must be 1, got {degree}: a model of this size "
            "is trained in data-parallel shards (data_parallel_replicate_degree for HSDP)",
        )
    wandb = "metrics.enable_wandb needs a package: pip install wandb"
    yield config.metrics.enable_wandb and find_spec("wandb") is None, wandb
    is_float8 = _FLOAT8 in config.model.converters
    yield (
        is_float8 and "output" not in config.quantize.linear.float8.filter_fqns,
        'quantize.linear.float8.filter_fqns must hold "output": the vocabulary projection '
        "stays in bfloat16",
    )
    torchao = f"model.converters {_FLOAT8} needs a package: pip install torchao"
    yield is_float8 and find_spec("torchao") is None, torchao


def _optimizer_refusals(config: JobConfig) -> _Refusals:
    """A schedule gives, outside of its steps, rates outside the settings, below zero even."""
    adam = config.optimizer
    yield (
        adam.name not in ("Adam", "AdamW") or not (0 <= adam.beta1 < 1 and 0 <= adam.beta2 < 1),
        "optimizer must be Adam or AdamW with beta1 and beta2 in [0, 1), got "
        f"{adam.name} with {adam.beta1} and {adam.beta2}",
    )
    offload = "training.enable_cpu_offload must be false: weights stay where they are trained"
    yield config.training.enable_cpu_offload, offload
    yield (
        adam.early_step_in_backward,
        "optimizer.early_step_in_backward must be false: whether a step is taken depends on "
        "all of its gradients",
    )
    schedule, steps = config.lr_scheduler, config.training.steps
    total = steps if schedule.total_steps is None else schedule.total_steps
    decay, warmup = schedule.decay_ratio or 0.0, schedule.warmup_steps
    for name, factor in (("min_lr_factor", schedule.min_lr_factor), ("decay_ratio", decay)):
        yield not 0 <= factor <= 1, f"lr_scheduler.{name} must be in [0, 1], got {factor}"
    yield (
        total < steps,
        f"lr_scheduler.total_steps {total} is below training.steps {steps}: the schedule must "
        "be as long as the run, or longer",
    )
    length = f"of {total} steps (lr_scheduler.total_steps, or training.steps if that is not set)"
    yield (
        warmup + round(total * decay) > total,
        f"lr_scheduler.warmup_steps {warmup} and decay_ratio {decay} are more than the schedule "
        f"{length}",
    )


def _interval_refusals(config: JobConfig) -> _Refusals:
    saves, profiling = config.checkpoint, config.profiling
    yield (
        bool(saves.milestone_interval % saves.interval),
        f"checkpoint.milestone_interval {saves.milestone_interval} is not a multiple of "
        f"checkpoint.interval {saves.interval}: some milestones would never be saved",
    )
    num_profiled = profiling.profiler_warmup + profiling.profiler_active
    yield (
        profiling.enable_profiling and profiling.profile_freq < num_profiled,
        f"profiling.profile_freq {profiling.profile_freq} is below profiler_warmup and "
        f"profiler_active together, {num_profiled}",
    )
    for section in _UNUSED_SECTIONS:
        is_set = (settings := getattr(config, section)) != type(settings)()
        yield is_set, f"the settings of {section} are not supported: nothing reads them"


def check_batch(config: JobConfig, num_processes: int) -> None:
    """Raises ValueError if a step cannot be shared equally among that many processes."""
    num_replicas = config.parallelism.data_parallel_replicate_degree
    num_shards = config.parallelism.data_parallel_shard_degree
    if (batch_size := config.training.global_batch_size) < 1 and batch_size != -1:
        sizes = "at least 1, or -1 for a local batch on each process"
        raise ValueError(f"training.global_batch_size must be {sizes}, got {batch_size}")
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
    num_gpus, num_local = torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if config.job.needs_gpu and num_gpus == 0:
        raise ValueError("job.needs_gpu is true, and torch sees no GPU on this machine")
    if 0 < num_gpus < num_local:
        raise ValueError(f"{num_local} processes were started on a machine of {num_gpus} GPUs")


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
