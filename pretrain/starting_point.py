"""Where a run starts: at a checkpoint of its own, at another run's weights, or from nothing."""

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from .checkpoints import checkpoint_step, checkpoint_steps, is_complete
from .job_config import JobConfig
from .run_record import RECORD_NAME, RunRecord


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The step that a run goes on from, and what its user should know about that."""

    record: RunRecord
    """Of the run, with the runs before it."""
    step: int = 0
    """Of its last whole checkpoint; 0 where it begins."""
    remark: str = ""


def find_starting_point(config: JobConfig, record: RunRecord) -> StartingPoint:
    """Where the run of this record starts; removes its torn checkpoints.

    Raises: ValueError with one line if the folder holds another run, or the weights to start from
    are missing or of another model.
    """
    folder = Path(config.job.dump_folder) / config.checkpoint.folder
    if not folder.exists():
        return StartingPoint(_with_earlier(config, record))
    _check_same_run(config, record)
    prefix = _remove_torn(folder)
    if whole := list(checkpoint_steps(folder)):
        record = replace(record, earlier=RunRecord.read(folder.parent).earlier)
        remark = f"{prefix}resuming from {folder}/step-{whole[-1]}"
        return StartingPoint(record, whole[-1], remark)
    # An empty folder would make torchtitan ignore checkpoint.initial_load_path.
    shutil.rmtree(folder)
    remark = f"{prefix}no complete checkpoint in {folder}, starting from the beginning"
    return StartingPoint(_with_earlier(config, record), 0, remark)


def _remove_torn(folder: Path) -> str:
    torn = [path for path in checkpoint_steps(folder).values() if not is_complete(path)]
    for path in torn:
        shutil.rmtree(path)
    return f"removed incomplete {', '.join(path.name for path in torn)}: " if torn else ""


def _check_same_run(config: JobConfig, record: RunRecord) -> None:
    dump_folder = Path(config.job.dump_folder)
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


def _with_earlier(config: JobConfig, record: RunRecord) -> RunRecord:
    path = config.checkpoint.initial_load_path
    if path is None:
        return record
    checkpoint = Path(path).resolve()  # "step-24" alone has a run above it too
    if not checkpoint.is_dir() or not is_complete(checkpoint):
        state = "is incomplete" if checkpoint.is_dir() else "does not exist"
        raise ValueError(
            f"checkpoint.initial_load_path {path} {state}: train the stage before first"
        )
    earlier = RunRecord.read(checkpoint.parent.parent)
    if earlier.tokenizer_sha256 != record.tokenizer_sha256:
        raise ValueError(
            f"checkpoint.initial_load_path {path} was trained with another tokenizer than the data"
        )
    shapes = [dict(run.model, max_position_embeddings=None) for run in (earlier, record)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"checkpoint.initial_load_path {path} holds a model of another shape")
    return record.after(earlier, checkpoint_step(checkpoint))
