"""What identifies a run, and where it starts: its checkpoint, another's weights, or nothing."""

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..job_config import JobConfig
from ..model.tinycomma import model_args
from ..plan.data_plan import DataPlan, data_record
from .checkpoints import checkpoint_step, checkpoint_steps, damage, set_aside, was_finished
from .record import RECORD_NAME, RunRecord
from .trainer import global_batch_size

MAY_DIFFER: Final = {
    "names the run, and what it shows and asks of its machine": (
        *("job.config_file", "job.dump_folder", "job.description", "job.print_config"),
        *("job.save_config_file", "job.verbose", "job.needs_gpu", "job.check_memory"),
        "model.print_after_conversion",
    ),
    "watches the run": ("metrics", "profiling", "heldout", "memory_estimation"),
    "waiting times and traces of the processes": (
        *("comm.init_timeout_seconds", "comm.train_timeout_seconds", "comm.trace_buf_size"),
        *("comm.save_traces_folder", "comm.save_traces_file_prefix"),
    ),
    "when checkpoints are written, how many are kept, and which is gone back to": (
        *("checkpoint.enable", "checkpoint.folder", "checkpoint.interval"),
        *("checkpoint.interval_minutes", "checkpoint.milestone_interval"),
        *("checkpoint.keep_latest_k", "checkpoint.async_mode", "checkpoint.load_step"),
        *("checkpoint.last_save_model_only", "checkpoint.last_save_in_hf"),
        *("checkpoint.export_dtype", "checkpoint.enable_first_step_checkpoint"),
        *("checkpoint.create_seed_checkpoint", "checkpoint.load_only"),
        "checkpoint.enable_ft_dataloader_checkpoints",
    ),
    "the same arithmetic shared, ordered or repeated in another way: equal up to rounding": (
        *("parallelism", "compile", "activation_checkpoint", "loss.chunk_tokens"),
        *("training.local_batch_size", "training.enable_cpu_offload"),
        *("optimizer.implementation", "debug.deterministic", "debug.deterministic_warn_only"),
    ),
    "a run may be made longer: the length of its schedule is compared": ("training.steps",),
    "in data.plan_hash, by contents in place of folders": (
        *("data.sources", "data.seed", "data.weight_unit"),
    ),
    "refuses or ends runs and changes none": (
        *("data.max_epochs", "data.verify_checksums", "spike_guard.max_nonfinite_steps"),
    ),
    "which tokenizer it is stands in data.plan_hash": (
        *("model.tokenizer", "model.tokenizer_path", "model.hf_assets_path"),
    ),
    "nothing reads it: [data] and our own loader are in its place": (
        *("training.dataset", "training.dataset_path", "training.dataloader", "validation"),
    ),
    "when Python collects its garbage": ("training.gc_freq", "training.gc_debug"),
}
"""By reason, the settings and whole sections in which a run and its resumption may differ.

Everything else must be equal, settings that torchtitan may add included.
"""


def record_of(config: JobConfig, plan: DataPlan, *, num_processes: int) -> RunRecord:
    """The record of a run about to start on `num_processes` data-parallel processes."""
    args = model_args(config)
    shape = {
        "vocab_size": args.vocab_size,
        "hidden_size": args.dim,
        "intermediate_size": args.hidden_dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_kv_heads or args.n_heads,
        "max_position_embeddings": args.max_seq_len,
        "rms_norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
    }
    return RunRecord(
        model=shape,
        tokenizer_sha256=plan.tokenizer_sha256,
        bos_id=plan.bos_id,
        eos_id=plan.eos_id,
        identity=_identity(config, num_processes) | {"data.plan_hash": plan.hash},
        data=data_record(plan, batch_size=global_batch_size(config, num_processes)),
    )


def _identity(config: JobConfig, num_processes: int) -> dict[str, Any]:
    """The settings that must be equal by their dotted names, in the form in which they count."""
    settings = dict(_settings(asdict(config)))
    settings["training.global_batch_size"] = global_batch_size(config, num_processes)
    settings["lr_scheduler.total_steps"] = config.lr_scheduler.total_steps or config.training.steps
    # Nothing reads these where another setting, which is compared, is off.
    is_at_work = {
        "spike_guard": config.spike_guard.action == "skip",  # else it only watches
        "quantize": bool(config.model.converters),
        "fault_tolerance": config.fault_tolerance.enable,
        "checkpoint.keep_moments": config.checkpoint.keep_moments,  # records of before lack it
    }
    left_out = [name for names in MAY_DIFFER.values() for name in names]
    left_out += [section for section, is_on in is_at_work.items() if not is_on]
    return {
        key: value
        for key, value in settings.items()
        if not any(key == name or key.startswith(f"{name}.") for name in left_out)
    }


def resolved_settings(config: JobConfig) -> dict[str, Any]:
    """Every setting of a run by its dotted name, defaults included; plain JSON."""
    settings = json.loads(json.dumps(dict(_settings(asdict(config)))))
    return {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in settings.items()
    }


def _settings(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def follow_forks(config: JobConfig) -> JobConfig:
    """The config with the settings that the forks of its run changed.

    A setting that the config has changed itself stays, and shows as another run's.
    """
    run = Path(config.job.dump_folder)
    if not (run / RECORD_NAME).is_file() or not (run / config.checkpoint.folder).is_dir():
        return config
    for name, values in _settings_of(RunRecord.read(run).forks).items():
        section, _, key = name.partition(".")
        table = getattr(config, section)
        if getattr(table, key) in [None, *values]:
            setattr(config, section, replace(table, **{key: values[-1]}))
    return config


def _settings_of(forks: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """All values that each setting has had, in order: before the first fork, and since each."""
    found: dict[str, list[Any]] = {}
    for fork in forks:
        for name, (before, after) in fork["settings"].items():
            found.setdefault(name, [before]).append(after)
    return found


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The step that a run goes on from, and what its user should know about that."""

    record: RunRecord
    """Of the run, with the runs before it."""
    step: int = 0
    """Of its last whole checkpoint; 0 where it begins."""
    remark: str = ""


def find_starting_point(config: JobConfig, record: RunRecord) -> StartingPoint:
    """Where the run of this record starts; sets aside what lies after its last whole checkpoint.

    Raises: ValueError with one line if the folder holds another run, or checkpoints of which none
    is whole any more, or the weights to start from are missing or of another model.
    """
    folder = Path(config.job.dump_folder) / config.checkpoint.folder
    if not folder.exists():
        return StartingPoint(_with_earlier(config, record))
    _check_same_run(config, record)
    reasons: dict[Path, str] = {}
    for step, path in reversed(checkpoint_steps(folder).items()):
        if reason := damage(path):
            reasons[path] = reason
            continue
        prefix = f"set aside {'; '.join(_set_aside(reasons))}: " if reasons else ""
        before = RunRecord.read(folder.parent)
        record = replace(
            before,
            model=record.model,
            identity=record.identity,
            data=before.forked_data(record.data),
        )
        return StartingPoint(record, step, f"{prefix}resuming from {path}")
    if was_finished(folder):
        found = "; ".join(f"{path.name}: {reason}" for path, reason in reasons.items())
        raise ValueError(
            f"{folder} holds no whole checkpoint ({found or 'they were set aside'}), and a run "
            "that had some does not start from 0: mend one, or choose another job.dump_folder"
        )
    # An empty folder would make torchtitan ignore checkpoint.initial_load_path.
    aside = set_aside(folder)
    remark = f"no complete checkpoint, set aside as {aside}: starting from the beginning"
    return StartingPoint(_with_earlier(config, record), 0, remark)


def _set_aside(reasons: dict[Path, str]) -> list[str]:
    return [f"{set_aside(path).name} ({reason})" for path, reason in reasons.items()]


def _check_same_run(config: JobConfig, record: RunRecord) -> None:
    dump_folder = Path(config.job.dump_folder)
    folder = dump_folder / config.checkpoint.folder
    if not (dump_folder / RECORD_NAME).exists():
        shadowed = config.checkpoint.initial_load_path
        effect = f"shadow checkpoint.initial_load_path {shadowed}" if shadowed else "be resumed"
        raise ValueError(
            f"{folder} exists without the record of a run and would {effect}: "
            "remove it or choose another job.dump_folder"
        )
    if difference := RunRecord.read(dump_folder).difference(record):
        raise ValueError(
            f"{folder} holds checkpoints of another run ({difference}): "
            "restore the setting or choose another job.dump_folder"
        )


def _with_earlier(config: JobConfig, record: RunRecord) -> RunRecord:
    path = config.checkpoint.initial_load_path
    if path is None:
        return record
    checkpoint = Path(path).resolve()  # "step-24" alone has a run above it too
    if not checkpoint.is_dir():
        raise ValueError(
            f"checkpoint.initial_load_path {path} does not exist: train the stage before first"
        )
    if reason := damage(checkpoint):
        raise ValueError(f"checkpoint.initial_load_path {path} is not whole: {reason}")
    earlier = RunRecord.read(checkpoint.parent.parent)
    if earlier.tokenizer_sha256 != record.tokenizer_sha256:
        raise ValueError(
            f"checkpoint.initial_load_path {path} was trained with another tokenizer than the data"
        )
    shapes = [dict(run.model, max_position_embeddings=None) for run in (earlier, record)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"checkpoint.initial_load_path {path} holds a model of another shape")
    return record.after(earlier, checkpoint_step(checkpoint))
