"""The stages of a training before any of it runs: tokens, epochs, steps and disk."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from ...configs.config_file import check_holds, from_table, read_toml
from ..tokens.shards import MANIFEST_NAME, Manifest
from .data_config import DataConfig, MixtureConfig, read_run_config
from .data_plan import DataPlan
from .order import Mixture

_TOKEN_BYTES = 4
_MARGIN_OF_TOKENS = 1.1
_LITTLE_MORE = 0.8


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlan:
    """The part of a stage that comes from one source."""

    name: str
    source_tokens: int
    """Tokens that the source has."""
    origin: str
    """Source of that number: shards, or stated by the mixture."""
    share: float
    """Share of the stage's tokens."""
    num_sequences: int
    num_tokens: int
    epochs: float
    contents: tuple[str, ...]
    """The sha256 of its shards' tokens; its folder while they are missing."""
    decontamination: dict[str, Any] = field(default_factory=dict)
    """Summary in its manifest; empty where nothing was searched, or shards are missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StagePlan:
    """A stage in whole steps."""

    name: str
    num_steps: int
    sequences_per_step: int
    seq_len: int
    weight_unit: str
    plan_hash: str
    """Hash of the data plan; empty while shards are missing."""
    sources: tuple[SourcePlan, ...]

    @property
    def num_tokens(self) -> int:
        return self.num_steps * self.sequences_per_step * self.seq_len


@dataclass(frozen=True, kw_only=True, slots=True)
class StageSpec:
    """A stage that is to be planned."""

    name: str
    data: DataConfig
    seq_len: int
    num_steps: int
    sequences_per_step: int
    sizes: dict[str, int] = field(default_factory=dict)
    """Tokens by name of sources whose shards are missing, where they are known."""
    dump_folder: Path | None = None
    """Folder of the run, where the stage is one."""

    def counts(self, mixture: Mixture) -> list[int]:
        """Sequences that the stage reads of each source."""
        return mixture.counts(self.num_steps * self.sequences_per_step)


def _mixture(data: DataConfig) -> Mixture:
    return Mixture([Fraction(repr(source.weight)) for source in data.sources])


def plan_stage(spec: StageSpec) -> StagePlan:
    """Plan a stage from its shards, or from sizes where shards are missing.

    Raises: ValueError if a size that is needed is not known, or shards do not fit together.
    """
    sources, missing = spec.data.sources, missing_sources(spec.data)
    if missing and spec.data.weight_unit == "documents":
        raise ValueError(
            f'weight_unit "documents" needs the shards of every source to count documents; '
            f"missing: {', '.join(missing)}"
        )
    if unknown := [name for name in missing if name not in spec.sizes]:
        raise ValueError(f"stage {spec.name} has no token shards of: {', '.join(unknown)}")
    manifests = {s.name: Manifest.read(Path(s.path)) for s in sources if s.name not in missing}
    sizes = spec.sizes | {name: manifest.num_tokens for name, manifest in manifests.items()}
    if missing:
        mixture, plan_hash = _mixture(spec.data), ""
        windows = [max(1, (sizes[source.name] - 1) // spec.seq_len) for source in sources]
    else:
        plan = DataPlan.open(spec.data, seq_len=spec.seq_len)
        mixture, windows, plan_hash = plan.mixture, plan.num_windows, plan.hash
    planned = []
    for source, weight, count, num_windows in zip(
        sources, mixture.weights, spec.counts(mixture), windows, strict=True
    ):
        manifest = manifests.get(source.name)
        planned.append(
            SourcePlan(
                name=source.name,
                source_tokens=sizes[source.name],
                origin="shards" if manifest else "stated",
                share=weight / sum(mixture.weights),
                num_sequences=count,
                num_tokens=count * spec.seq_len,
                epochs=count / num_windows,
                contents=tuple(manifest.tokens_sha256 if manifest else [source.path]),
                decontamination=dict(manifest.decontamination if manifest else {}),
            )
        )
    return StagePlan(
        name=spec.name,
        num_steps=spec.num_steps,
        sequences_per_step=spec.sequences_per_step,
        seq_len=spec.seq_len,
        weight_unit=spec.data.weight_unit,
        plan_hash=plan_hash,
        sources=tuple(planned),
    )


def missing_sources(data: DataConfig) -> list[str]:
    """Names of the sources whose folder has no manifest; shards themselves are not looked at."""
    return [
        source.name for source in data.sources if not (Path(source.path) / MANIFEST_NAME).is_file()
    ]


def is_mixture(path: Path) -> bool:
    """True if a TOML file describes a mixture with its stages rather than one training run."""
    return "stages" in read_toml(path)


def mixture_specs(mixture: MixtureConfig) -> list[StageSpec]:
    """Every stage of a mixture, in whole steps."""
    sizes = {source.name: source.num_tokens for source in mixture.sources if source.num_tokens}
    return [
        StageSpec(
            name=stage.name,
            data=mixture.data_config(stage),
            seq_len=mixture.seq_len,
            num_steps=max(1, round(stage.tokens / mixture.tokens_per_step)),
            sequences_per_step=mixture.tokens_per_step // mixture.seq_len,
            sizes=sizes,
        )
        for stage in mixture.stages
    ]


def needed_tokens(mixture: MixtureConfig, name: str) -> int:
    """Tokens of a source that are enough for all stages together, with a margin; 0: take all.

    The margin is for input files that are shorter than their share. A source that has little more
    than that or an unknown size, or of which documents are drawn, is taken whole.
    """
    num_tokens = mixture.source(name).num_tokens
    if mixture.weight_unit != "tokens" or not num_tokens:
        return 0
    read = 0
    for spec in mixture_specs(mixture):
        names = [source.name for source in spec.data.sources]
        if name in names:
            read += spec.counts(_mixture(spec.data))[names.index(name)] * spec.seq_len
    enough = round(read * _MARGIN_OF_TOKENS)
    return enough if enough < _LITTLE_MORE * num_tokens else 0


def run_spec(path: Path) -> StageSpec:
    """The stage that a training run's config describes.

    Raises: FileNotFoundError, or ValueError with the key that is unknown, missing or wrong.
    """
    # Not through torchtitan's config, whose import takes seconds and looks for a device.
    table = read_run_config(path)
    job, training, data = (table.get(name, {}) for name in ("job", "training", "data"))
    for section, value in (("job", job), ("training", training), ("data", data)):
        if not isinstance(value, dict):
            raise ValueError(f"{section} in {path} must be a table, got {value!r}")
    check_holds(path, table, "training", "a training run")
    for key in ("seq_len", "steps", "global_batch_size"):
        if not isinstance(training.get(key), int) or training[key] < 1:
            raise ValueError(
                f"{path} must give training.{key} as a positive number, got {training.get(key)!r}"
            )
    folder = job.get("dump_folder")
    return StageSpec(
        name=path.stem,
        data=from_table(DataConfig, data, "data."),
        dump_folder=Path(folder) if isinstance(folder, str) else None,
        seq_len=training["seq_len"],
        num_steps=training["steps"],
        sequences_per_step=training["global_batch_size"],
    )


def check_epochs(readings: Iterable[tuple[str, Sequence[str], float]], max_epochs: float) -> None:
    """Raises ValueError about the tokens that are read most often, if that is more than allowed.

    readings: for each source of each stage its name, what identifies its contents (as
    `SourcePlan.contents` does), and the passes over them; at least one. Names do not count: the
    same shard under two of them, or twice under one, is read by both.
    """
    passes: dict[str, float] = {}
    names: dict[str, dict[str, None]] = {}
    for name, contents, epochs in readings:
        for content in contents:
            passes[content] = passes.get(content, 0.0) + epochs
            names.setdefault(content, {})[name] = None
    most_read, most = max(passes.items(), key=lambda item: item[1])
    if most > max_epochs:
        first, *same = names[most_read]
        also = f", which holds the same tokens as {' and '.join(same)}," if same else ""
        raise ValueError(
            f"source {first}{also} would be read {most:.2f} times, more than max_epochs "
            f"{max_epochs:g} allows: lower its weight, or raise max_epochs"
        )


def shards_bytes(stages: Sequence[StagePlan], mixture: MixtureConfig) -> int:
    """Bytes of the shards that are there, and of those that tokenizing the rest would write."""
    num_tokens = 0
    for source in {one.name: one for stage in stages for one in stage.sources}.values():
        needed = needed_tokens(mixture, source.name) if source.origin == "stated" else 0
        num_tokens += needed or source.source_tokens
    return _TOKEN_BYTES * num_tokens
