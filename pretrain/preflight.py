"""Checks before training: everything that would fail later, or train the wrong thing, fails now."""

import tempfile
from pathlib import Path

from .capacity import check_disk, check_gpus, check_memory
from .checkpoints import checkpoint_steps
from .data_plan import DataPlan
from .data_record import epochs_read
from .epoch_limit import check_epochs
from .heldout import check_heldout
from .job_config import JobConfig
from .machine import Machine
from .memory_estimate import estimate_memory, parameter_count
from .model import flavors
from .run_identity import record_of
from .run_record import RunRecord
from .settings_check import check_settings
from .shards import file_sha256
from .starting_point import find_starting_point
from .trainer import global_batch_size


def check_run(
    config: JobConfig, *, num_processes: int, machine: Machine | None = None
) -> list[str]:
    """Refuse a run that cannot work, and make its dump folder ready; returns remarks for the user.

    Called by the first process only, before the processes meet. What takes long, the comparison
    of checksums, comes last and is left out where the run goes on from a checkpoint of its own.
    Incomplete checkpoints of this very run, left by a process killed while saving, are removed.
    machine: None stands for this one.
    Raises: ValueError with one line that says what is wrong.
    """
    check_settings(config)
    check_batch(config, num_processes)
    dump_folder = Path(config.job.dump_folder)
    _check_writable(dump_folder)
    machine = machine or Machine.here(dump_folder)
    check_gpus(config, machine)
    plan = DataPlan.open(config.data, seq_len=config.training.seq_len, verify=False)
    record = record_of(config, plan, num_processes=num_processes)
    _check_vocabulary(record, plan)
    _check_tokenizer(config, plan)
    check_heldout(config.heldout, seq_len=plan.seq_len, tokenizer_sha256=plan.tokenizer_sha256)
    start = find_starting_point(config, record)
    _check_epochs(config, start.record)
    _check_capacity(config, machine, num_processes)
    if config.data.verify_checksums and start.step == 0:
        DataPlan.open(config.data, seq_len=config.training.seq_len, verify=True)
    start.record.write(dump_folder)
    return [start.remark] if start.remark else []


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
    round_size = config.training.local_batch_size * num_processes
    if batch_size % round_size:
        raise ValueError(
            f"training.global_batch_size must be a multiple of local_batch_size times the number "
            f"of processes, got {batch_size} and {config.training.local_batch_size} * "
            f"{num_processes}"
        )


def _check_writable(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"job.dump_folder {folder} is not writable: {error.strerror}") from error


def _check_vocabulary(record: RunRecord, plan: DataPlan) -> None:
    if plan.vocab_size > record.model["vocab_size"]:
        raise ValueError(
            f"the tokenizer of the data has {plan.vocab_size} tokens, more than the "
            f"{record.model['vocab_size']} of the model"
        )


def _check_tokenizer(config: JobConfig, plan: DataPlan) -> None:
    if not config.model.tokenizer:
        return
    path = Path(config.model.tokenizer) / "tokenizer.json"
    if not path.is_file():
        raise ValueError(f"model.tokenizer: {path} does not exist")
    if (actual := file_sha256(path)) != plan.tokenizer_sha256:
        raise ValueError(
            f"model.tokenizer {path} has sha256 {actual[:12]}, and the token shards were made by "
            f"{plan.tokenizer_sha256[:12]}"
        )


def _check_epochs(config: JobConfig, record: RunRecord) -> None:
    stages = [epochs_read(run.data, step) for run, step in record.stages(config.training.steps)]
    check_epochs(stages, config.data.max_epochs)


def _check_capacity(config: JobConfig, machine: Machine, num_processes: int) -> None:
    args = flavors()[config.model.flavor]
    args.update_from_config(config)
    num_shards = num_processes // config.parallelism.data_parallel_replicate_degree
    check_memory(config, machine, estimate_memory(config, args, num_shards=num_shards))
    folder = Path(config.job.dump_folder) / config.checkpoint.folder
    check_disk(
        config,
        machine,
        num_parameters=parameter_count(args),
        num_existing=len(checkpoint_steps(folder)),
    )
