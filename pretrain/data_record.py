"""What a run's data is, in numbers that outlive the shards: for its record and the model card."""

from fractions import Fraction
from typing import Any

from .data_plan import DataPlan
from .mixture import Mixture


def data_record(plan: DataPlan, *, batch_size: int) -> dict[str, Any]:
    """The plan's sources, and what `tokens_read` needs; all of it JSON."""
    sources = [
        {
            "name": source.name,
            "weight": source.weight,
            "mixture_weight": mixture_weight,
            "num_windows": num_windows,
            "origin": shards.manifest.source,
            "revision": shards.manifest.revision,
            "licences": shards.manifest.licences,
            "num_documents": shards.manifest.num_documents,
            "num_tokens": shards.manifest.num_tokens,
        }
        for source, mixture_weight, num_windows, shards in zip(
            plan.config.sources, plan.mixture.weights, plan.num_windows, plan.shards, strict=True
        )
    ]
    return {
        "plan_hash": plan.hash,
        "weight_unit": plan.config.weight_unit,
        "seq_len": plan.seq_len,
        "batch_size": batch_size,
        "sources": sources,
    }


def epochs_read(data: dict[str, Any], step: int) -> dict[str, float]:
    """Passes over each source, by its name, in the first `step` steps of a run."""
    return {
        source["name"]: num_tokens / (source["num_windows"] * data["seq_len"])
        for source, num_tokens in zip(data["sources"], tokens_read(data, step), strict=True)
    }


def tokens_read(data: dict[str, Any], step: int) -> list[int]:
    """Tokens of each source in the first `step` steps of a run with this data record."""
    weights = [Fraction(source["mixture_weight"]) for source in data["sources"]]
    counts = Mixture(weights).counts(step * data["batch_size"])
    return [count * data["seq_len"] for count in counts]
