"""How many tokens, epochs and steps a stage of training takes, before any of it runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .data_config import DataConfig
from .data_plan import DataPlan
from .mixture import Mixture
from .shards import Manifest


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceSize:
    """How much text a source has."""

    num_tokens: int
    origin: str
    """Where the number is from: shards, counted or estimated."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlan:
    """What a stage reads of one source."""

    name: str
    size: SourceSize
    share: float
    """Of the stage's tokens."""
    num_sequences: int
    num_tokens: int
    epochs: float


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """A stage in whole steps."""

    name: str
    num_steps: int
    sequences_per_step: int
    seq_len: int
    weight_unit: str
    plan_hash: str
    """Of the data plan; empty while shards are missing."""
    sources: tuple[SourcePlan, ...]

    @property
    def num_tokens(self) -> int:
        return self.num_steps * self.sequences_per_step * self.seq_len

    @property
    def epochs(self) -> dict[str, float]:
        """Passes over each source, by its name."""
        return {source.name: source.epochs for source in self.sources}


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """A stage that is to be planned."""

    name: str
    data: DataConfig
    seq_len: int
    num_steps: int
    sequences_per_step: int
    sizes: dict[str, SourceSize]
    """Of sources whose shards are missing, where they are known; by name."""


def plan_stage(spec: StageSpec, missing: Sequence[str]) -> StagePlan:
    """Plan a stage from its shards, or from sizes where shards are missing.

    missing: names of the sources without shards.
    Raises: ValueError if a size that is needed is not known, or shards do not fit together.
    """
    if not missing:
        return _from_shards(spec)
    _check_sizes(spec, missing)
    sizes = {
        source.name: spec.sizes[source.name]
        if source.name in missing
        else SourceSize(num_tokens=Manifest.read(source.folder).num_tokens, origin="shards")
        for source in spec.data.sources
    }
    weights = [Fraction(repr(source.weight)) for source in spec.data.sources]
    windows = [max(1, (size.num_tokens - 1) // spec.seq_len) for size in sizes.values()]
    return _stage(spec, list(sizes.values()), Mixture(weights), windows, plan_hash="")


def missing_sources(data: DataConfig) -> list[str]:
    """Names of the sources whose folder has no token shards."""
    return [source.name for source in data.sources if not source.has_shards]


def _from_shards(spec: StageSpec) -> StagePlan:
    plan = DataPlan.open(spec.data, seq_len=spec.seq_len, verify=False)
    sizes = [SourceSize(num_tokens=shards.num_tokens, origin="shards") for shards in plan.shards]
    return _stage(spec, sizes, plan.mixture, plan.num_windows, plan_hash=plan.hash)


def _stage(
    spec: StageSpec,
    sizes: Sequence[SourceSize],
    mixture: Mixture,
    windows: Sequence[int],
    *,
    plan_hash: str,
) -> StagePlan:
    counts = mixture.counts(spec.num_steps * spec.sequences_per_step)
    sources = tuple(
        SourcePlan(
            name=source.name,
            size=size,
            share=weight / sum(mixture.weights),
            num_sequences=count,
            num_tokens=count * spec.seq_len,
            epochs=count / num_windows,
        )
        for source, size, weight, count, num_windows in zip(
            spec.data.sources, sizes, mixture.weights, counts, windows, strict=True
        )
    )
    return StagePlan(
        name=spec.name,
        num_steps=spec.num_steps,
        sequences_per_step=spec.sequences_per_step,
        seq_len=spec.seq_len,
        weight_unit=spec.data.weight_unit,
        plan_hash=plan_hash,
        sources=sources,
    )


def _check_sizes(spec: StageSpec, missing: Sequence[str]) -> None:
    if spec.data.weight_unit == "documents":
        raise ValueError(
            f'weight_unit "documents" needs the shards of every source to count documents; '
            f"missing: {', '.join(missing)}"
        )
    if unknown := [name for name in missing if name not in spec.sizes]:
        raise ValueError(f"stage {spec.name} has no token shards of: {', '.join(unknown)}")
