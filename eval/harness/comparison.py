"""Several models, alone or as pairs, on the same tasks of lm-eval: recorded, tabled and drawn."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from inspect import signature
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from ... import text_tables
from ...configs.config_file import (
    check_holds,
    find_path,
    from_table,
    located,
    read_with_folders,
)
from ...decode.pair.folder import folder_fingerprint, model_identity
from ...durable_files import file_sha256, write_durably
from ...errors import AnchoredError
from ...identities import check_same
from ..recorded_texts import file_name, grouped, write_json
from .tasks import task_figures

SCHEMA: Final = "anchored-comparison/1"
PATHS: Final = ("corpus", "delta", "peft", "tokenizer")
"""Settings of a pair's rule, and of lm-eval's `hf`, that may name files or folders."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """One way to ask a benchmark's questions."""

    task: str
    """The task's name in lm-eval, or in the config's folder of tasks."""
    metric: str = "acc"
    num_fewshot: int = -1
    """Examples before a question; -1 for the task's number."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A column of the table: the best of its variants counts."""

    label: str
    variants: tuple[Variant, ...]
    limit: int = 0
    """The first documents; 0 takes the comparison's limit."""
    runs_code: bool = False
    """Whether code of the models runs on this machine, which has to be allowed."""

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
    """Hugging Face folder or Hub id of a pair's safe model."""
    risky: str = ""
    settings: dict[str, object] = field(default_factory=dict)
    """Other model arguments: of a pair those of `anchored lm-eval`, such as rule and k; of a model
    alone those of lm-eval's `hf`, such as parallelize = true."""

    def __post_init__(self) -> None:
        if bool(self.model) == bool(self.safe or self.risky) or bool(self.safe) != bool(self.risky):
            raise ValueError(f"{self.label!r} must name either model, or safe and risky")

    @property
    def models(self) -> dict[str, str]:
        """Folders and Hub ids, by lm-eval's names."""
        if self.model:
            return {"pretrained": self.model}
        return {"safe": self.safe, "risky": self.risky}

    @property
    def arguments(self) -> dict[str, object]:
        """The arguments of lm-eval's model."""
        return {**self.models, **self.settings}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """The settings of a comparison's TOML file."""

    title: str
    """Title of table and picture."""
    benchmarks: tuple[Benchmark, ...]
    models: tuple[Entry, ...] = ()
    tasks: str = ""
    """Folder of task files besides lm-eval's, next to the config or where the command runs."""
    limit: int = 0
    """The first documents of each task; 0 takes all."""
    batch_size: int = 16
    device: str = ""
    """cpu, cuda, ...; by default CUDA if there is one."""

    def __post_init__(self) -> None:
        for what, owners in (("models", self.models), ("benchmarks", self.benchmarks)):
            labels = [owner.label for owner in owners]
            if not labels or len(set(map(file_name, labels))) < len(labels):
                raise ValueError(f"{what} need different labels, at least one, got {labels}")


@dataclass(frozen=True, slots=True)
class Cell:
    """A model on a benchmark; nan if it was left out."""

    value: float
    error: float
    """Standard error."""
    task: str
    """The variant that is best."""


Cells = dict[str, dict[str, Cell]]
"""Cells by model, then by benchmark."""


def load_comparison(path: Path, models: tuple[Entry, ...] = ()) -> Comparison:
    """The comparison of a TOML file. models: override the file's. Raises FileNotFoundError, or
    ValueError that names an unknown key, a value or a file."""
    tables, folders = read_with_folders(path)
    check_holds(path, tables, "benchmarks", "a comparison")
    if models:
        tables["models"] = [asdict(entry) for entry in models]
    config: Comparison = from_table(Comparison, tables)
    if config.tasks:
        config = replace(config, tasks=str(located("tasks", config.tasks, folders)))
    if models:
        return replace(config, models=models)

    entries = []
    for entry in config.models:
        names = {key: getattr(entry, key) for key in ("model", "safe", "risky")}
        located_in: dict[str, Any] = {  # ids of the Hub stay
            key: str(find_path(name, folders) or name) for key, name in names.items() if name
        }
        entries.append(replace(entry, **located_in))
    return replace(config, models=tuple(entries))


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
    """Answer the questions that are not recorded in `folder`, one model after the other. runs_code:
    also benchmarks that run code of models. Of several processes the first records."""
    # Known before any is done: all processes leave out the same.
    todo = [
        (entry, benchmark, variant)
        for entry in config.models
        for benchmark in config.benchmarks
        for variant in benchmark.variants
        if (runs_code or not benchmark.runs_code) and not _file(folder, entry, variant).is_file()
    ]
    for members in grouped(todo, lambda item: item[0].label).values():
        model = make_model(members[0][0], config)
        for entry, benchmark, variant in members:
            identity = _identity(entry, benchmark, variant, config)
            figures = task_figures(
                model,
                variant.task,
                task_folder,
                num_fewshot=None if variant.num_fewshot < 0 else variant.num_fewshot,
                limit=identity["limit"],
                runs_code=benchmark.runs_code,
            )
            if figures is not None:  # the first process
                file = _file(folder, entry, variant)
                write_durably(file, json.dumps({**identity, "figures": figures}) + "\n")


def write_comparison(config: Comparison, folder: Path) -> Cells:
    """Write results.json and table.md of all records; returns the table's cells."""
    cells: Cells = {
        entry.label: {
            benchmark.label: _cell(config, folder, entry, benchmark)
            for benchmark in config.benchmarks
        }
        for entry in config.models
    }
    rows = [
        {"model": model, "benchmark": name, **asdict(cell)}
        for model, row in cells.items()
        for name, cell in row.items()
    ]
    results = {"schema": SCHEMA, "settings": asdict(config), "rows": rows}
    write_json(folder / "results.json", results, indent=None)
    table = text_tables.markdown(*table_of(cells), numbers=True)
    write_durably(folder / "table.md", f"{config.title}\n\n{table}\n")
    return cells


def table_of(cells: Cells) -> tuple[list[str], list[list[str]]]:
    """Titles and rows: each benchmark's best variant with its standard error, and their mean."""
    rows = []
    for model, row in cells.items():
        # An error of 0, where all answers were right or all wrong, says nothing of other questions.
        shown = [
            f"{cell.value:.3f}" + (f" +- {cell.error:.3f}" if cell.error > 0 else "")
            for cell in row.values()
        ]
        figures = [*shown, f"{fmean(cell.value for cell in row.values()):.3f}"]
        rows.append([model, *("-" if figure == "nan" else figure for figure in figures)])
    return ["model", *next(iter(cells.values())), "mean"], rows


def _file(folder: Path, entry: Entry, variant: Variant) -> Path:
    shots = "" if variant.num_fewshot < 0 else f"-{variant.num_fewshot}"
    return folder / "answers" / file_name(entry.label) / f"{file_name(variant.task)}{shots}.json"


def _identity(
    entry: Entry, benchmark: Benchmark, variant: Variant, config: Comparison
) -> dict[str, Any]:
    """All that decides a recorded figure, without the paths of models."""
    limit = benchmark.limit or config.limit or None
    models = {name: model_identity(model) for name, model in entry.models.items()}
    model = {"label": entry.label, **models, "settings": settings_identity(entry.settings)}
    task = Path(config.tasks, f"{variant.task}.yaml")
    here = {"file": file_sha256(task)} if config.tasks and task.is_file() else {}
    return {"model": model, "variant": asdict(variant) | here, "limit": limit}


def settings_identity(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the sha256 of files and folders in place of their paths."""
    identity = dict(settings)
    for name, value in settings.items():
        path = Path(value).expanduser() if name in PATHS and isinstance(value, str) else Path()
        if path.is_file():
            identity[name] = file_sha256(path)
        elif path.name and path.is_dir():
            identity[name] = folder_fingerprint(path)
    return identity


def _cell(config: Comparison, folder: Path, entry: Entry, benchmark: Benchmark) -> Cell:
    """The best variant's figure; nan without one."""
    cells = [Cell(math.nan, math.nan, "")]
    for variant in benchmark.variants:
        file = _file(folder, entry, variant)
        if not file.is_file() and benchmark.runs_code:
            continue
        record = json.loads(file.read_text(encoding="utf-8"))
        figures = record.pop("figures")
        identity = _identity(entry, benchmark, variant, config)
        check_same(record, identity, file, advice="restore them, or name a new folder")
        if variant.metric not in figures:
            known = ", ".join(figures)
            raise AnchoredError(f"{variant.task} has no metric {variant.metric!r}, only {known}")
        error = float(figures.get(f"{variant.metric}_stderr", math.nan))
        cells.append(Cell(float(figures[variant.metric]), error, variant.task))
    return max(cells, key=lambda cell: -math.inf if math.isnan(cell.value) else cell.value)
