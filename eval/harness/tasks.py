"""Tasks of lm-evaluation-harness from a folder on this machine, without the network."""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ...errors import AnchoredError

MODEL_NAME: Final = "anchored"
MODEL_TARGET: Final = "anchored.eval.harness.model:AnchoredLM"


def register_model() -> None:
    """Make `--model anchored` known to lm-eval; the class is loaded at first use. May be called
    again. Raises: ModuleNotFoundError if lm-eval is not installed."""
    with lm_eval_needed():
        # The built-in models first: lm-eval adds them only while its registry is empty.
        importlib.import_module("lm_eval.models")
        from lm_eval.api.registry import model_registry
    if MODEL_NAME not in model_registry:
        model_registry.register(MODEL_NAME, target=MODEL_TARGET)


def task_figures(
    model: Any,
    task: str,
    folder: Path | None,
    *,
    num_fewshot: int | None = None,
    limit: int | None = None,
    runs_code: bool = False,
) -> dict[str, float] | None:
    """A task's {metric: value, metric_stderr: value}; None on all but the first process. folder: of
    YAML files besides lm-eval's tasks; for a task in it lm-eval's are not read, so that nothing is
    fetched. limit: documents, None for all. runs_code: allows code of the model on this machine.
    Raises: AnchoredError for an unknown task, for missing data, and for a task that runs code
    without permission; ModuleNotFoundError if lm-eval is not installed."""
    manager = task_manager(folder) if folder is not None else None
    if manager is None or task not in manager.all_tasks:
        manager = task_manager(folder, has_defaults=True)
    if task not in manager.all_tasks:
        raise AnchoredError(f"neither lm-eval nor {folder} has a task {task!r}")
    from lm_eval import simple_evaluate

    try:
        with _no_split_lines():
            evaluated = simple_evaluate(
                model=model,
                tasks=[task],
                task_manager=manager,
                num_fewshot=num_fewshot,
                limit=limit,
                log_samples=False,
                bootstrap_iters=1000,  # for metrics without a closed-form standard error
                confirm_run_unsafe_code=runs_code,
            )
    except OSError as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise AnchoredError(
            f"the data of task {task} is not on this machine, and the Hub did not give it: {reason}"
        ) from error
    if evaluated is None:
        return None
    return {  # "acc,none" has what lm-eval calls the filter after the metric
        name.partition(",")[0]: float(value)
        for name, value in evaluated["results"][task].items()
        if isinstance(value, int | float)
    }


def task_manager(folder: Path | None, *, has_defaults: bool = False) -> Any:
    """lm-eval's list of the tasks in a folder, with its default tasks on request. Raises:
    ModuleNotFoundError if lm-eval is not installed."""
    with lm_eval_needed():
        from lm_eval.tasks import TaskManager

    path = None if folder is None else str(folder)
    return TaskManager(include_path=path, include_defaults=has_defaults)


@contextmanager
def _no_split_lines() -> Iterator[None]:
    """Without the bars of datasets, which show 0 examples for every split of a local file."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()


@contextmanager
def lm_eval_needed() -> Iterator[None]:
    """Raise ModuleNotFoundError with the command that installs lm-eval if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"lm-eval is not installed ({error}): pip install 'anchored[eval]'", name=error.name
        ) from error
