"""What identifies a run: the settings and data that decide its weights after a given step."""

from dataclasses import asdict
from typing import Any

from .data_plan import DataPlan
from .data_record import data_record
from .job_config import JobConfig
from .model import TinyCommaArgs, flavors
from .run_record import RunRecord
from .trainer import global_batch_size


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
    schedule = asdict(config.lr_scheduler)
    schedule["total_steps"] = schedule["total_steps"] or config.training.steps
    optimizer = asdict(config.optimizer)
    optimizer.pop("implementation")  # the same update, computed in another order
    training = {
        key: getattr(config.training, key)
        for key in ("seq_len", "max_norm", "dtype", "mixed_precision_param")
    }
    training["global_batch_size"] = global_batch_size(config, num_processes)
    sections = {"optimizer": optimizer, "lr_scheduler": schedule, "training": training}
    identity = {
        f"{section}.{key}": value
        for section, keys in sections.items()
        for key, value in keys.items()
    }
    identity["debug.seed"] = config.debug.seed
    identity["model.converters"] = config.model.converters or None
    identity["data.mask_documents"] = config.data.mask_documents or None
    guard = config.spike_guard
    identity["spike_guard"] = asdict(guard) if guard.action == "skip" else None
    identity["checkpoint.initial_load_path"] = config.checkpoint.initial_load_path
    return identity
