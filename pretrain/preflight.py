"""Checks before training: everything that would fail later, or train the wrong thing, fails now."""

import shutil
import tempfile
from pathlib import Path

from .checkpoints import checkpoint_steps, is_complete
from .data_plan import DataPlan
from .job_config import JobConfig
from .model import flavors
from .run_identity import record_of
from .run_record import RECORD_NAME, RunRecord
from .trainer import global_batch_size


def check_run(config: JobConfig, *, num_processes: int) -> list[str]:
    """Refuse a run that cannot work, and make its dump folder ready; returns remarks for the user.

    Called by the first process only, before the processes meet. Incomplete checkpoints of this
    very run, left by a process killed while saving, are removed.
    Raises: ValueError with one line that says what is wrong.
    """
    _check_settings(config)
    _check_batch(config, num_processes)
    dump_folder = Path(config.job.dump_folder)
    _check_writable(dump_folder)
    plan = DataPlan.open(
        config.data, seq_len=config.training.seq_len, verify=config.data.verify_checksums
    )
    record = record_of(config, plan, num_processes=num_processes)
    _check_vocabulary(record, plan)
    remarks = _prepare_checkpoints(config, record, dump_folder)
    record.write(dump_folder)
    return remarks


def _check_settings(config: JobConfig) -> None:
    if config.model.name != "tinycomma" or config.model.flavor not in flavors():
        raise ValueError(
            f"model.flavor must be one of {', '.join(flavors())} of model.name tinycomma, "
            f"got {config.model.flavor} of {config.model.name}"
        )
    if config.debug.seed is None:
        raise ValueError("debug.seed is not set: the initial weights are drawn from it")
    if not config.checkpoint.enable:
        raise ValueError("checkpoint.enable is false: the run would leave nothing behind")
    if config.checkpoint.last_save_model_only or config.checkpoint.last_save_in_hf:
        raise ValueError(
            "checkpoint.last_save_model_only and last_save_in_hf must be false: a run that ends "
            "so cannot be started again; use `anchored export` on its checkpoint"
        )
    if config.validation.enable:
        raise ValueError("validation.enable is not supported: there is no validation data")


def _check_batch(config: JobConfig, num_processes: int) -> None:
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


def _prepare_checkpoints(config: JobConfig, record: RunRecord, dump_folder: Path) -> list[str]:
    folder = dump_folder / config.checkpoint.folder
    if not folder.exists():
        _check_initial_weights(config, record)
        return []
    _check_same_run(config, record, dump_folder)
    steps = checkpoint_steps(folder)
    torn = {step: path for step, path in steps.items() if not is_complete(path)}
    whole = [step for step in steps if step not in torn]
    for path in torn.values():
        shutil.rmtree(path)
    removed = f"removed incomplete {', '.join(path.name for path in torn.values())}: "
    prefix = removed if torn else ""
    if whole:
        return [f"{prefix}resuming from {folder}/step-{whole[-1]}"]
    # An empty folder would make torchtitan ignore checkpoint.initial_load_path.
    shutil.rmtree(folder)
    _check_initial_weights(config, record)
    return [f"{prefix}no complete checkpoint in {folder}, starting from the beginning"]


def _check_same_run(config: JobConfig, record: RunRecord, dump_folder: Path) -> None:
    folder = dump_folder / config.checkpoint.folder
    if not (dump_folder / RECORD_NAME).exists():
        shadowed = config.checkpoint.initial_load_path
        effect = (
            f"would shadow checkpoint.initial_load_path {shadowed}"
            if shadowed
            else ("would be resumed")
        )
        raise ValueError(
            f"{folder} exists without the record of a run and {effect}: "
            "remove it or choose another job.dump_folder"
        )
    if difference := RunRecord.read(dump_folder).difference(record):
        raise ValueError(
            f"{folder} holds checkpoints of another run ({difference}): "
            "restore the setting or choose another job.dump_folder"
        )


def _check_initial_weights(config: JobConfig, record: RunRecord) -> None:
    path = config.checkpoint.initial_load_path
    if path is None:
        return
    checkpoint = Path(path)
    if not checkpoint.is_dir() or not is_complete(checkpoint):
        state = "is incomplete" if checkpoint.is_dir() else "does not exist"
        raise ValueError(
            f"checkpoint.initial_load_path {path} {state}: train the stage before first"
        )
    earlier = RunRecord.read(checkpoint.parents[1])
    if earlier.tokenizer_sha256 != record.tokenizer_sha256:
        raise ValueError(
            f"checkpoint.initial_load_path {path} was trained with another tokenizer than the data"
        )
    shapes = [dict(run.model, max_position_embeddings=None) for run in (earlier, record)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"checkpoint.initial_load_path {path} holds a model of another shape")
