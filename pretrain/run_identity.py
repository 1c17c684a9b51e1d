"""What identifies a run: the settings and data that decide its weights after a given step."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from .data_plan import DataPlan
from .data_record import data_record
from .job_config import JobConfig
from .model import TinyCommaArgs, flavors
from .run_record import RunRecord
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
    "refuses runs and changes none": ("data.max_epochs", "data.verify_checksums"),
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
    args = flavors()[config.model.flavor]
    args.update_from_config(config)
    manifest = plan.shards[0].manifest
    return RunRecord(
        model=_model_shape(args),
        tokenizer_sha256=plan.tokenizer_sha256,
        bos_id=manifest.bos_id,
        eos_id=manifest.eos_id,
        identity=_identity(config, num_processes) | {"data.plan_hash": plan.hash},
        data=data_record(plan, batch_size=global_batch_size(config, num_processes)),
    )


def _model_shape(args: TinyCommaArgs) -> dict[str, Any]:
    return {
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


def _identity(config: JobConfig, num_processes: int) -> dict[str, Any]:
    """The settings that must be equal by their dotted names, in the form in which they count."""
    settings = dict(_settings(asdict(config)))
    settings["training.global_batch_size"] = global_batch_size(config, num_processes)
    settings["lr_scheduler.total_steps"] = config.lr_scheduler.total_steps or config.training.steps
    left_out = [name for names in MAY_DIFFER.values() for name in names] + _idle_sections(config)
    return {key: value for key, value in settings.items() if not _is_in(key, left_out)}


def _settings(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _idle_sections(config: JobConfig) -> list[str]:
    """Sections that nothing reads where another setting, which is compared, is off."""
    is_at_work = {
        "spike_guard": config.spike_guard.action == "skip",  # else it only watches
        "quantize": bool(config.model.converters),
        "fault_tolerance": config.fault_tolerance.enable,
    }
    return [section for section, is_on in is_at_work.items() if not is_on]


def _is_in(key: str, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in names)
