"""Several models, alone or as pairs, on the same tasks of lm-eval: recorded, tabled and drawn."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, Final

from ... import AnchoredError, text_tables
from ...configs.config_file import from_table, read_config_file
from ...durable_files import write_durably
from ...environment import environment_record
from ..recorded_texts import file_name, grouped
from ..statistics import json_value
from .tasks import task_figures

SCHEMA: Final = "anchored-comparison/1"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to ask a benchmark's questions."""

    task: str
    """Its name in lm-eval, or in the config's folder of tasks."""
    metric: str = "acc"
    num_fewshot: int = -1
    """Examples before a question; -1 for as many as the task says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A column of the table: the best of its variants counts."""

    label: str
    variants: tuple[Variant, ...]
    limit: int = 0
    """The first documents; 0 takes the comparison's limit."""
    runs_code: bool = False
    """Whether what the models write is run on this machine, which has to be asked for."""

    def __post_init__(self) -> None:
        if not self.variants:
            raise ValueError(f"benchmark {self.label!r} needs variants, got none")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A row of the table: a model alone, or a pair under a rule."""

    label: str
    model: str = ""
    """Hugging Face folder or Hub id of a model alone."""
    safe: str = ""
    """The same of a pair."""
    risky: str = ""
    settings: dict[str, object] = field(default_factory=dict)
    """Other model arguments: of a pair those of `anchored lm-eval`, rule and k above all; of a
    model alone those of lm-eval's own `hf`, as parallelize = true."""

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.safe or self.risky) or bool(self.safe) != bool(self.risky):
            raise ValueError(f"{self.label!r} must name either model, or safe and risky")

    @property
    def models(self) -> dict[str, str]:
        """Folders and Hub ids, by what lm-eval calls them."""
        if self.model:
            return {"pretrained": self.model}
        return {"safe": self.safe, "risky": self.risky}

    @property
    def arguments(self) -> dict[str, object]:
        """What lm-eval makes its model of."""
        return {**self.models, **self.settings}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What a comparison's TOML file says."""

    title: str
    """Of table and picture."""
    benchmarks: tuple[Benchmark, ...]
    models: tuple[Entry, ...] = ()
    tasks: str = ""
    """Folder of task files beside lm-eval's own, relative to the config."""
    limit: int = 0
    """The first documents of each task; 0 takes all."""
    batch_size: int = 16
    device: str = ""
    """cpu, cuda, ...; CUDA where there is one unless given."""

    def __post_init__(self) -> None:
        for what, owners in (("models", self.models), ("benchmarks", self.benchmarks)):
            labels = [owner.label for owner in owners]
            if not labels or len(set(map(file_name, labels))) < len(labels):
                raise ValueError(f"{what} need labels of their own, at least one, got {labels}")


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on a benchmark; nan where it was left out."""

    value: float
    error: float
    """Standard error."""
    task: str
    """The variant that is best."""


Cells = dict[str, dict[str, Cell]]
"""By model, by benchmark."""


def load_comparison(path: Path, models: tuple[Entry, ...] = ()) -> Comparison:
    """The comparison of a TOML file. models: in place of the file's own.

    Raises FileNotFoundError, or ValueError that names an unknown key, a value or a file.
    """
    tables = read_config_file(path)
    if models:
        tables["models"] = [asdict(entry) for entry in models]
    config: Comparison = from_table(Comparison, tables)
    folder = path.parent / config.tasks
    if config.tasks and not folder.is_dir():
        raise FileNotFoundError(f"there is no folder of tasks {folder}")
    return config


def check_settings(entry: Entry) -> None:
    """Raise ValueError for a setting that the entry's model does not take; nothing is loaded."""
    if not entry.model:
        from .arguments import pair_arguments

        pair, _ = pair_arguments(entry.arguments, {})
        pair.rule.make()
    elif entry.settings:
        from lm_eval.models.huggingface import HFLM

        known = signature(HFLM).parameters.keys() - {"pretrained", "trust_remote_code", "kwargs"}
        if unknown := sorted(entry.settings.keys() - known):
            raise ValueError(f"a model alone takes {', '.join(sorted(known))}, got {unknown[0]!r}")


def evaluate(
    config: Comparison,
    folder: Path,
    *,
    task_folder: Path | None,
    runs_code: bool,
    make_model: Callable[[Entry, Comparison], Any],
) -> None:
    """Do what is not recorded in `folder` yet, one model after the other.

    runs_code: also benchmarks that run what models write. Of several processes the first records.
    """
    # Known before any is done: all processes leave out the same.
    todo = [
        (entry, benchmark, variant)
        for entry in config.models
        for benchmark in config.benchmarks
        for variant in benchmark.variants
        if (runs_code or not benchmark.runs_code) and not _file(folder, entry, variant).is_file()
    ]
    for members in grouped(todo, lambda own: own[0].label).values():
        model = make_model(members[0][0], config)
        for own, benchmark, variant in members:
            asked = _asked(own, benchmark, variant, config)
            figures = task_figures(
                model,
                variant.task,
                task_folder,
                num_fewshot=None if variant.num_fewshot < 0 else variant.num_fewshot,
                limit=asked["limit"],
                runs_code=benchmark.runs_code,
            )
            if figures is not None:  # the first process
                file = _file(folder, own, variant)
                write_durably(file, json.dumps({**asked, "figures": figures}) + "\n")


def write_comparison(config: Comparison, folder: Path) -> Cells:
    """results.json and table.md of what is recorded; returns the table's cells."""
    cells: Cells = {
        entry.label: {
            benchmark.label: _cell(config, folder, entry, benchmark)
            for benchmark in config.benchmarks
        }
        for entry in config.models
    }
    results = {
        "schema": SCHEMA,
        "settings": asdict(config),
        "environment": environment_record(),
        "rows": [
            {"model": model, "benchmark": name, **json_value(asdict(cell))}
            for model, row in cells.items()
            for name, cell in row.items()
        ],
    }
    write_durably(folder / "results.json", json.dumps(results, allow_nan=False) + "\n")
    table = text_tables.markdown(*table_of(cells), numbers=True)
    write_durably(folder / "table.md", f"{config.title}\n\n{table}\n")
    return cells


def table_of(cells: Cells) -> tuple[list[str], list[list[str]]]:
    """Titles and rows: each benchmark's best variant with its standard error, and their mean."""
    names = list(next(iter(cells.values())))
    rows = []
    for model, row in cells.items():
        values = [row[name].value for name in names]
        shown = [_shown(cell) for cell in row.values()]
        mean = "-" if any(map(math.isnan, values)) else f"{sum(values) / len(values):.3f}"
        rows.append([model, *shown, mean])
    return ["model", *names, "mean"], rows


def _shown(cell: Cell) -> str:
    if math.isnan(cell.value):
        return "-"
    return f"{cell.value:.3f}" + ("" if math.isnan(cell.error) else f" +- {cell.error:.3f}")


def _file(folder: Path, entry: Entry, variant: Variant) -> Path:
    shots = "" if variant.num_fewshot < 0 else f"-{variant.num_fewshot}"
    return folder / "answers" / file_name(entry.label) / f"{file_name(variant.task)}{shots}.json"


def _asked(
    entry: Entry, benchmark: Benchmark, variant: Variant, config: Comparison
) -> dict[str, Any]:
    """What decides a recorded figure."""
    limit = benchmark.limit or config.limit or None
    return {"model": asdict(entry), "variant": asdict(variant), "limit": limit}


def _cell(config: Comparison, folder: Path, entry: Entry, benchmark: Benchmark) -> Cell:
    """The best variant's figure; nan where nothing was asked for."""
    found = [Cell(math.nan, math.nan, "")]
    for variant in benchmark.variants:
        file = _file(folder, entry, variant)
        if not file.is_file() and benchmark.runs_code:
            continue
        record = json.loads(file.read_text(encoding="utf-8"))
        figures = record.pop("figures")
        if record != _asked(entry, benchmark, variant, config):
            raise AnchoredError(f"{file} records other settings: name a new folder")
        if variant.metric not in figures:
            known = ", ".join(figures)
            raise AnchoredError(f"{variant.task} has no metric {variant.metric!r}, only {known}")
        error = float(figures.get(f"{variant.metric}_stderr", math.nan))
        found.append(Cell(float(figures[variant.metric]), error, variant.task))
    return max(found, key=lambda cell: -math.inf if math.isnan(cell.value) else cell.value)
