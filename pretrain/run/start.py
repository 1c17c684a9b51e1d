"""The identity of a run, and where it starts: its checkpoint, another's weights, or nothing."""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ...durable_files import json_value, new_folder
from ..job_config import JobConfig, place_of
from ..model.tinycomma import model_args
from ..plan.data_plan import DataPlan, data_record
from ..tokens.shards import encoding_difference
from .checkpoints import SEAL_NAME, checkpoint_step, checkpoint_steps, damage, set_aside
from .record import RECORD_NAME, RunRecord, changes
from .trainer import global_batch_size

IDENTITY: Final = (
    *("model.name", "model.flavor", "model.converters"),
    *("training.seq_len", "training.global_batch_size", "training.max_norm", "training.dtype"),
    *("training.mixed_precision_param", "training.mixed_precision_reduce"),
    *("optimizer.name", "optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps"),
    *("optimizer.weight_decay", "lr_scheduler", "debug.seed", "data.mask_documents"),
    *("checkpoint.initial_load_path", "checkpoint.keep_moments"),
    *("checkpoint.fork_from", "checkpoint.fork_skip_steps"),
)
"""Settings and whole sections that decide a run's weights: they are the same on every start.

Runs may be copied and moved: of the data its contents count, as its plan names them, of another
run's checkpoint the end of its path, RUN/checkpoint/step-N. Parallelism, compilation and the size
of a process's batch are missing because they change nothing but rounding, training.steps because a
run may be made longer: the length of its schedule is compared.
"""
_CHECKPOINTS: Final = ("checkpoint.initial_load_path", "checkpoint.fork_from")
MAY_CHANGE: Final = ("optimizer.", "lr_scheduler.", "spike_guard.", "training.max_norm")
"""Settings that may change where a run forks: they decide nothing about what a checkpoint holds."""


def record_of(config: JobConfig, plan: DataPlan, *, num_processes: int) -> RunRecord:
    """The record of a run about to start on `num_processes` data-parallel processes."""
    args = model_args(config)
    shape = {
        "vocab_size": args.vocab_size,
        "hidden_size": args.dim,
        "intermediate_size": args.hidden_dim,
        "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads,
        "num_key_value_heads": args.n_heads,
        "max_position_embeddings": args.max_seq_len,
        "rms_norm_eps": args.norm_eps,
        "rope_theta": args.rope_theta,
    }
    # By name, so that a refusal can name what differs; the hash is of their order too.
    read = plan.identity | {"sources": {one["name"]: one for one in plan.identity["sources"]}}
    data = {**dict(_settings(read, "data.")), "data.plan_hash": plan.hash}
    return RunRecord(
        model=shape,
        tokenizer_sha256=plan.tokenizer_sha256,
        bos_id=plan.bos_id,
        eos_id=plan.eos_id,
        identity=_identity(config, num_processes) | data,
        data=data_record(plan, batch_size=global_batch_size(config, num_processes)),
    )


def _identity(config: JobConfig, num_processes: int) -> dict[str, Any]:
    """The settings that must be equal by their dotted names, in the form in which they count."""
    settings = dict(_settings(asdict(config)))
    settings["training.global_batch_size"] = global_batch_size(config, num_processes)
    settings["lr_scheduler.total_steps"] = config.lr_scheduler.total_steps or config.training.steps
    for name in _CHECKPOINTS:
        if path := settings[name]:
            settings[name] = "/".join(Path(path).resolve().parts[-3:])
    # Another guard than "skip" only watches.
    at_work = {
        "spike_guard": config.spike_guard.action == "skip",
        "quantize": config.model.converters,
    }
    names = {*IDENTITY, *(name for name, is_used in at_work.items() if is_used)}
    return {key: value for key, value in settings.items() if {key, key.split(".")[0]} & names}


def resolved_settings(config: JobConfig) -> dict[str, Any]:
    """Every setting of a run by its dotted name, defaults included; plain JSON."""
    settings: dict[str, Any] = json_value(dict(_settings(asdict(config))))
    return settings


def _settings(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The step that a run goes on from, and what its user should know about that."""

    record: RunRecord
    step: int = 0
    """Step of its last whole checkpoint; 0 where it begins."""
    remark: str = ""
    forked: Path | None = None
    """Checkpoint of another run that is still to be copied, by `copy_fork`."""


def find_starting_point(config: JobConfig, record: RunRecord) -> StartingPoint:
    """The starting point of a run; sets aside what lies after its last whole checkpoint.

    Raises: ValueError with one line if the folder holds another run, or checkpoints of which none
    is whole any more, or the weights to start from are missing or of another model.
    """
    folder = Path(config.job.dump_folder) / config.checkpoint.folder
    # 1. Without checkpoints it begins: as another run's fork, with another's weights, with nothing.
    if not folder.exists():
        if config.checkpoint.fork_from:
            return _fork(config, record)
        if config.checkpoint.initial_load_path:
            checkpoint, other = _other_run("initial_load_path", config, record)
            earlier = {**asdict(other), "step": checkpoint_step(checkpoint)}
            record = replace(record, earlier=earlier)
        return StartingPoint(record)
    # 2. It goes on from its last whole one; only then are later ones set aside.
    before = _same_run(config, record)
    reasons: dict[Path, str] = {}
    for step, path in reversed(checkpoint_steps(folder).items()):
        if reason := damage(path):
            reasons[path] = reason
            continue
        asides = [f"{set_aside(torn).name} ({why})" for torn, why in reasons.items()]
        prefix = f"set aside {'; '.join(asides)}: " if asides else ""
        skips = {"skips": before.data["skips"]} if "skips" in before.data else {}
        record = replace(before, data=record.data | skips)
        return StartingPoint(record, step, f"{prefix}resuming from {path}")
    # 3. None is whole. A run that had some is not begun again over them, as one may be mended; one
    # that was killed while it sealed its first one never had any.
    if any((path / SEAL_NAME).exists() for path in folder.iterdir()):
        damages = "; ".join(f"{path.name}: {reason}" for path, reason in reasons.items())
        raise ValueError(
            f"{folder} holds no whole checkpoint ({damages or 'they were set aside'}), and a run "
            "that had some does not start from 0: mend one, or choose another job.dump_folder"
        )
    aside = set_aside(folder)
    remark = f"no complete checkpoint, set aside as {aside}: starting from the beginning"
    start = find_starting_point(config, record)
    return replace(start, remark=f"{remark}{start.remark and '; '}{start.remark}")


def _fork(config: JobConfig, record: RunRecord) -> StartingPoint:
    # 1. Of what decides the weights only that may differ which the checkpoint does not hold.
    checkpoint, other = _other_run("fork_from", config, record)
    step, changed = checkpoint_step(checkpoint), changes(other.identity, record.identity)
    changed = {name: both for name, both in changed.items() if not name.startswith("checkpoint.")}
    for name, (before, after) in changed.items():
        if not name.startswith(MAY_CHANGE):
            raise ValueError(
                f"a fork of {checkpoint} has another {name} ({before} there, {after} here): only "
                f"{', '.join(MAY_CHANGE)} may change"
            )
    # 2. Data that the other run left out before the checkpoint stays left out here.
    num_skipped = config.checkpoint.fork_skip_steps
    skips = [skip for skip in other.data.get("skips", []) if skip[0] < step]
    skips += [[step, num_skipped]] if num_skipped else []
    fork = {"from": str(checkpoint), "step": step, "skip_steps": num_skipped, "settings": changed}
    forked = replace(
        record,
        data=record.data | ({"skips": skips} if skips else {}),
        earlier=other.earlier,
        forks=[*(one for one in other.forks if one["step"] < step), fork],
    )
    remark = f"going on from {checkpoint}, as another run"
    return StartingPoint(forked, step, remark, forked=checkpoint)


def copy_fork(config: JobConfig, checkpoint: Path) -> None:
    """Copy another run's checkpoint and curves into a run that forks from it and has its record.

    The copy makes the run whole without the other: it is resumed as any run.
    """
    run, source = Path(config.job.dump_folder), checkpoint.parents[1]
    for name in ("metrics.jsonl", "heldout.jsonl", "spikes.jsonl"):  # cut at the step later
        if (source / name).is_file():
            shutil.copy(source / name, run / name)
    with new_folder(run / config.checkpoint.folder) as folder:
        shutil.copytree(checkpoint, folder / checkpoint.name)


def _same_run(config: JobConfig, record: RunRecord) -> RunRecord:
    """The record that is in the dump folder. Raises ValueError unless it is of the same run."""
    dump_folder = Path(config.job.dump_folder)
    folder = dump_folder / config.checkpoint.folder
    if not (dump_folder / RECORD_NAME).exists():
        raise ValueError(
            f"{folder} exists without the record of a run: remove it or choose another "
            "job.dump_folder"
        )
    before = RunRecord.read(dump_folder)
    if difference := before.difference(record):
        raise ValueError(
            f"{folder} holds checkpoints of another run ({difference}): "
            "restore the setting or choose another job.dump_folder"
        )
    return before


def _other_run(name: str, config: JobConfig, record: RunRecord) -> tuple[Path, RunRecord]:
    """A checkpoint to start from and its run's record; ValueError if not of this model, or torn."""
    path = getattr(config.checkpoint, name)
    checkpoint = place_of(config, f"checkpoint.{name}", path).resolve()  # for its run above it
    if reason := damage(checkpoint):
        raise ValueError(f"checkpoint.{name} {path} is not whole: {reason}")
    other = RunRecord.read(checkpoint.parents[1])
    if difference := encoding_difference(other, record):
        raise ValueError(
            f"checkpoint.{name} {path} was trained on data that was tokenized differently: "
            f"{difference}"
        )
    shapes = [dict(run.model, max_position_embeddings=None) for run in (other, record)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"checkpoint.{name} {path} holds a model of another shape")
    return checkpoint, other
