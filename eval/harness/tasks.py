"""Tasks of lm-evaluation-harness from a folder on this machine, without the network."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

MODEL_NAME: Final = "anchored"
MODEL_TARGET: Final = "anchored.eval.harness.model:AnchoredLM"


def register_model() -> None:
    """Make `--model anchored` known to lm-eval; the class is loaded at first use.

    May be called again. Raises: ModuleNotFoundError if lm-eval is not installed.
    """
    model_registry = _lm_eval_registry()
    if MODEL_NAME not in model_registry:
        model_registry.register(MODEL_NAME, target=MODEL_TARGET)


def local_task_results(
    model: Any, folder: Path, tasks: Sequence[str], *, limit: int | None = None
) -> dict[str, dict[str, float]]:
    """Run tasks of the YAML files in `folder`: {task: {metric: value, metric_stderr: value}}.

    model: an AnchoredLM. limit: documents a task, None for all. lm-eval's own tasks are not
    known here, so nothing is fetched.
    Raises: ValueError for a task that the folder does not hold; ModuleNotFoundError if lm-eval
    is not installed.
    """
    _lm_eval_registry()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder), include_defaults=False)
    if unknown := [task for task in tasks if task not in manager.all_tasks]:
        raise ValueError(f"no task {unknown} in {folder}, which holds {manager.all_tasks}")
    evaluated = simple_evaluate(
        model=model,
        tasks=list(tasks),
        task_manager=manager,
        limit=limit,
        log_samples=False,
        bootstrap_iters=1000,  # for metrics without a closed-form standard error; acc has one
    )
    # Numbers alone, and lm-eval's filter name "none" left out of "acc,none".
    return {
        task: {
            name.removesuffix(",none"): float(value)
            for name, value in values.items()
            if isinstance(value, int | float)
        }
        for task, values in evaluated["results"].items()
    }


def _lm_eval_registry() -> Any:
    try:
        # The built-in models first: lm-eval adds them only while its registry is empty.
        importlib.import_module("lm_eval.models")
        return importlib.import_module("lm_eval.api.registry").model_registry
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"lm-eval is not installed ({error}): pip install 'anchored[eval]'", name=error.name
        ) from error
