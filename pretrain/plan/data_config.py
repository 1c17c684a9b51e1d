"""The data of a training: the [data] section of a run, and a mixture of sources for stages."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path
from typing import Literal, TypeVar

from ...configs.config_file import (
    Tables,
    find_path,
    from_table,
    located,
    read_config_file,
    read_toml,
)
from ...fields import fitted

Entry = TypeVar("Entry", "MixtureSource", "MixtureStage")
WeightUnit = Literal["tokens", "documents"]
"""A weight is a share of tokens, or (as in lingua) the chance to draw one of its documents."""


def _check_positive(name: str, value: float, *, is_finite: bool = False) -> None:
    if not value > 0 or (is_finite and value == inf):
        raise ValueError(f"{name} must be positive, got {value}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """One source of the mixture."""

    name: str
    """Identifies the source in plans and logs; also keys the order in which it is read."""
    path: str
    """Folder of token shards."""
    weight: float
    """Positive; only the ratios between sources matter."""

    def __post_init__(self) -> None:
        _check_positive(f"weight of source {self.name}", self.weight, is_finite=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """The data that the model is trained on."""

    sources: tuple[DataSource, ...] = ()
    """One source or more, all tokenized by the same tokenizer."""
    weight_unit: WeightUnit = "tokens"
    seed: int = 0
    """Keys the order of windows in every source and epoch."""
    max_epochs: float = inf
    """No source may be read more often, in the stages before this one included."""
    mask_documents: bool = False
    """Attention stays within a document; else, as in lingua, within a sequence of several."""
    verify_checksums: bool = True
    """Refuse shards that differ from their sha256, or that were not verified since they came."""

    def __post_init__(self) -> None:
        _check_positive("data.max_epochs", self.max_epochs)
        names = [source.name for source in self.sources]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"data.sources names must differ, got twice: {', '.join(duplicates)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureSource:
    """One source."""

    name: str
    """Names its folder of shards, and keys the order in which it is read."""
    weights: dict[str, float]
    """Weight by stage; a stage that is not named does not read the source."""
    dataset: str = ""
    """Hub dataset; empty where the texts are local, or the shards are there."""
    revision: str = ""
    """Its commit."""
    num_tokens: int = 0
    """Size of the source while its shards are missing, counted or estimated; 0: not known."""
    license_form: Literal["names", "spdx"] = "names"
    """Form of licenses in its records: a name of `licenses`, or SPDX ids joined by commas, of which
    each must be in `spdx_licenses`."""
    license_if_none: str = ""
    """Name under which documents without a license are counted; empty: they are refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureStage:
    """One stage of training."""

    name: str
    tokens: float
    """Tokens that the stage is to read; rounded to whole steps."""
    seed: int
    """Keys the order of windows."""

    def __post_init__(self) -> None:
        _check_positive(f"tokens of stage {self.name}", self.tokens)


@dataclass(frozen=True, kw_only=True, slots=True)
class MixtureConfig:
    """Everything that decides what is read in which stage."""

    shards_folder: str
    """Holds one folder of token shards a source, by its name."""
    seq_len: int
    """Tokens in a sequence."""
    tokens_per_step: int
    """A multiple of seq_len."""
    max_epochs: float
    """No source may be read more often over all stages together."""
    stages: tuple[MixtureStage, ...]
    sources: tuple[MixtureSource, ...]
    weight_unit: WeightUnit = "tokens"
    licenses: tuple[str, ...] = ()
    """Allow-list for tokenizing; shell patterns."""
    spdx_licenses: tuple[str, ...] = ()
    """Further ones for sources that state SPDX ids."""

    def __post_init__(self) -> None:
        step, seq_len = self.tokens_per_step, self.seq_len
        if step < 1 or seq_len < 1 or step % seq_len:
            raise ValueError(
                f"tokens_per_step must be a multiple of seq_len, got {step} and {seq_len}"
            )
        _check_positive("max_epochs", self.max_epochs)
        stages = [stage.name for stage in self.stages]
        for kind, names in (("stages", stages), ("sources", [one.name for one in self.sources])):
            if not names or len(set(names)) != len(names):
                raise ValueError(f"{kind} must be at least one, with different names, got {names}")
        for source in self.sources:
            if unknown := sorted(set(source.weights) - set(stages)):
                raise ValueError(f"source {source.name} has a weight for no stage: {unknown[0]}")

    def source(self, name: str) -> MixtureSource:
        """The source of that name. Raises ValueError if there is none."""
        return _named("source", self.sources, name)

    def stage(self, name: str) -> MixtureStage:
        """The stage of that name. Raises ValueError if there is none."""
        return _named("stage", self.stages, name)

    def allowed_licenses(self, source: MixtureSource) -> tuple[str, ...]:
        """The allow-list for one source; with what counts for documents without a license."""
        spdx = self.spdx_licenses if source.license_form == "spdx" else ()
        if_none = (source.license_if_none,) if source.license_if_none else ()
        return (*self.licenses, *spdx, *if_none)

    def data_config(self, stage: MixtureStage) -> DataConfig:
        """The [data] section of the stage's run: with the same shards, the same plan hash."""
        folder, name = Path(self.shards_folder), stage.name
        sources = (
            DataSource(name=s.name, path=str(folder / s.name), weight=s.weights[name])
            for s in self.sources
            if name in s.weights
        )
        return DataConfig(
            sources=tuple(sources),
            weight_unit=self.weight_unit,
            seed=stage.seed,
            max_epochs=self.max_epochs,
        )


def _named(kind: str, entries: Sequence[Entry], name: str) -> Entry:
    by_name = {entry.name: entry for entry in entries}
    if name not in by_name:
        raise ValueError(f"the mixture has no {kind} {name}; known: {', '.join(by_name)}")
    return by_name[name]


def load_mixture(path: Path) -> MixtureConfig:
    """Raises FileNotFoundError, or ValueError with the key that is unknown, missing or wrong."""
    config: MixtureConfig = from_table(MixtureConfig, read_toml(path))
    return replace(config, shards_folder=_next_to(config.shards_folder, path.parent))


def _next_to(name: str, folder: Path) -> str:
    """A path that a config in `folder` names: next to the config where it exists there, else as it
    is, from where the command runs."""
    return str(find_path(name, (folder,)) or name)


def read_run_config(path: Path) -> Tables:
    """The tables of a training run's config, bases and mixture resolved.

    Where [data] names a `mixture` and a `stage` of it, these give the sources with their weights,
    weight_unit, seed and max_epochs that [data] does not say itself. What a file names is looked
    for next to that file, then where the command runs; what the run writes lies where it runs.
    Raises: FileNotFoundError, or ValueError with what is wrong in which file.
    """
    return read_config_file(path, expanded=_with_sources_of_stage)


_PATHS = (("model", "tokenizer"), ("checkpoint", "initial_load_path"), ("checkpoint", "fork_from"))
"""Keys of what a run reads, but its sources of data."""


def _with_paths(tables: Tables, folder: Path) -> Tables:
    """The tables with each path that exists next to their file as a path from here."""
    tables = copy.deepcopy(tables)
    parts = [(tables.get(section), key) for section, key in _PATHS]
    for section in ("data", "heldout"):
        sources = part.get("sources") if isinstance(part := tables.get(section), dict) else None
        parts += [(source, "path") for source in sources] if isinstance(sources, list) else []
    for part, key in parts:
        if isinstance(part, dict) and isinstance(part.get(key), str) and part[key]:
            part[key] = _next_to(part[key], folder)
    return tables


def _with_sources_of_stage(tables: Tables, folder: Path) -> Tables:
    tables = _with_paths(tables, folder)
    data = tables.get("data")
    if not isinstance(data, dict) or "mixture" not in data:
        return tables
    for key in ("mixture", "stage"):
        fitted(f"config key data.{key}", data.get(key, ""), str)
    mixture = load_mixture(located("data.mixture", data["mixture"], (folder, Path())))
    stage = asdict(mixture.data_config(mixture.stage(data.get("stage", ""))))
    said = {key: value for key, value in data.items() if key not in ("mixture", "stage")}
    read = {key: stage[key] for key in ("weight_unit", "seed", "max_epochs")}
    return tables | {"data": {**read, "sources": list(stage["sources"]), **said}}
