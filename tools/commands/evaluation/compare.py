"""The command that runs benchmarks of lm-eval on several models, and tables and draws them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from anchored import text_tables
from anchored.decode.pair.folder import ModelFolder, model_location
from anchored.decode.settings import REPEATED
from anchored.fields import check_least
from anchored.inputs import check_input

from ..files import is_first_process
from ..option_types import POSITIONAL, ComparisonFile

if TYPE_CHECKING:
    from anchored.eval.harness.comparison import Comparison, Entry


@dataclass(frozen=True, kw_only=True, slots=True)
class CompareConfig:
    """Run several models on the same benchmarks: anchored compare configs/eval/downstream.toml

    Records each model's figures of each task as they are found, and goes on where it was
    interrupted. Folders may replace the file's models.

    anchored compare configs/eval/safe-models.toml --model Ours=FOLDER --model Theirs=OWNER/NAME
    """

    file: Annotated[ComparisonFile, POSITIONAL]
    """Config of models and benchmarks; --list names the package's."""
    output: Path = Path("runs/compare")
    """Folder of what is recorded, of the table and the picture."""
    model: Annotated[tuple[str, ...], REPEATED] = ()
    """Model alone in place of the file's, LABEL=FOLDER or LABEL=OWNER/NAME; give it again for
    more."""
    limit: int = 0
    """First documents of each task that are asked, in place of the file's limit; 0 takes that."""
    confirm_run_unsafe_code: bool = False
    """Run what the models write on this machine, as HumanEval does; benchmarks that would are left
    out otherwise."""
    dry_run: bool = False
    """Print the models and tasks, and load nothing."""

    def __post_init__(self) -> None:
        check_least(self, 0, "limit")
        for text in self.model:
            label_and_model(text)
        check_input(self.file)


def run(config: CompareConfig) -> int:
    """Do what is not done yet; returns the exit status."""
    from anchored.eval.harness.comparison import (
        Entry,
        evaluate,
        load_comparison,
        table_of,
        write_comparison,
    )

    named = map(label_and_model, config.model)
    comparison = load_comparison(
        config.file, models=tuple(Entry(label=a, model=b) for a, b in named)
    )
    if config.limit:
        benchmarks = tuple(replace(b, limit=0) for b in comparison.benchmarks)
        comparison = replace(comparison, limit=config.limit, benchmarks=benchmarks)
    problems = _model_problems(comparison)
    if config.dry_run:
        missing = [f"missing: {problem}" for problem in problems]
        print("\n".join([comparison_plan(comparison), *missing]))
        return 0
    if problems:
        raise FileNotFoundError(problems[0])
    left_out = [b.label for b in comparison.benchmarks if b.runs_code]
    if left_out and not config.confirm_run_unsafe_code and is_first_process():
        print(f"left out without --confirm-run-unsafe-code: {', '.join(left_out)}")
    evaluate(
        comparison,
        config.output,
        task_folder=Path(comparison.tasks) if comparison.tasks else None,
        runs_code=config.confirm_run_unsafe_code,
        make_model=_model,
    )
    if is_first_process():
        cells = write_comparison(comparison, config.output)
        _draw(comparison, cells, config.output / "scores.png")
        print(text_tables.aligned(*table_of(cells)))
    return 0


def label_and_model(text: str) -> tuple[str, str]:
    """The parts of a word of --model; ValueError where it has no two."""
    label, equals, model = text.partition("=")
    if not (label and equals and model):
        raise ValueError(f"--model must be LABEL=FOLDER or LABEL=OWNER/NAME, got {text!r}")
    return label, model


def _model_problems(comparison: "Comparison") -> list[str]:
    """A line for each name that is neither a folder nor an id of the Hub; ValueError for a setting
    that a model does not take."""
    from anchored.eval.harness.comparison import check_settings

    problems = []
    for entry in comparison.models:
        for name in entry.models.values():
            try:
                model_location(name)
            except FileNotFoundError as error:
                problems.append(f"{entry.label}: {error}")
        try:
            check_settings(entry)
        except FileNotFoundError:
            pass  # of its models, which are named above
        except ValueError as error:
            raise ValueError(f"{entry.label}: {error}") from None
    return problems


def comparison_plan(comparison: "Comparison") -> str:
    """Models, tasks and how many of both."""
    rows = [
        [benchmark.label, ", ".join(variant.task for variant in benchmark.variants)]
        for benchmark in comparison.benchmarks
    ]
    models = [[entry.label, " + ".join(entry.models.values())] for entry in comparison.models]
    limit = comparison.limit or "all"
    num_tasks = sum(len(benchmark.variants) for benchmark in comparison.benchmarks)
    return (
        f"{len(models)} models x {num_tasks} tasks, {limit} documents each\n\n"
        f"{text_tables.aligned(['model', 'from'], models)}\n\n"
        f"{text_tables.aligned(['benchmark', 'tasks'], rows)}\n"
    )


def _model(entry: "Entry", comparison: "Comparison") -> Any:
    """lm-eval's model of a model alone, ours of a pair."""
    from lm_eval.api.registry import get_model

    from anchored.eval.harness.tasks import register_model

    register_model()
    arguments = {"batch_size": comparison.batch_size, **entry.arguments}
    defaults = {} if "device" in arguments else {"device": comparison.device or None}
    kind = "hf" if entry.model else "anchored"
    if entry.model:  # lm-eval does not name a model that the Hub does not have
        ModelFolder.find(entry.model, cast("str | None", entry.settings.get("revision")))
    return get_model(kind).create_from_arg_obj(arguments, defaults)


def _draw(comparison: "Comparison", cells: Any, path: Path) -> None:
    from anchored.eval.figures.distributions import plot_scores

    names = [benchmark.label for benchmark in comparison.benchmarks]
    drawn = [
        name for name in names if not all(math.isnan(row[name].value) for row in cells.values())
    ]
    scores = {
        model: [(row[name].value, row[name].error) for name in drawn]
        for model, row in cells.items()
    }
    plot_scores(scores, drawn, path, title=comparison.title)
