"""What a run has read of each source, from its step alone."""

from dataclasses import dataclass

from .data_plan import DataPlan


@dataclass(frozen=True, slots=True)
class SourceUsage:
    """How much of one source the first sequences of a plan read."""

    name: str
    num_tokens: int
    num_epochs: float
    """Passes over the source; 0.5 is half of its windows once."""


def source_usage(plan: DataPlan, num_sequences: int) -> list[SourceUsage]:
    """For every source of the plan, in its order; in time that does not grow with the sequences."""
    counts = plan.mixture.counts(num_sequences)
    return [
        SourceUsage(source.name, count * plan.seq_len, count / num_windows)
        for source, count, num_windows in zip(
            plan.config.sources, counts, plan.num_windows, strict=True
        )
    ]
