"""Running a sweep in a folder, alone or with other processes that share its settings."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from ... import ModelPair
from ...durable_files import locked
from ..recorded_texts import PROMPTS_FILE
from ..retrieval.passages import DenseIndex, PassageIndex, WordIndex
from .experiment import CLAIMS, Experiment, save_prompts
from .generations import (
    check_requests,
    draw_by_vllm,
    forget_failures,
    generation_tasks,
    read_all_prompts,
)
from .measures import MEASURES, check_held_out, forget_failed_scores, measure, utility_tasks
from .plan import sweep_experiment
from .results import write_sweep_results
from .steps import Steps, Task, share
from .sweep import Sweep


def run_sweep(
    sweep: Sweep,
    folder: Path,
    load: Callable[[], ModelPair],
    *,
    is_first: bool = True,
    retry_failed: bool = False,
) -> str:
    """Do what is left of a sweep; returns the text for the terminal.

    load: gives the pair. is_first: of several processes with one folder, one writes the results,
    when all settings are done; the others return "" once no setting is free. retry_failed: repeat
    the generations that are recorded with an error.
    Raises ValueError for a folder that belongs to something else or that another first process
    works in, and the errors of models and rules.
    """
    steps = Steps(folder, sweep.identity(), owner="sweep")
    if not is_first:
        experiment, pair = _opened(sweep, folder, load)
        read_all_prompts(experiment, pair)
        share(_tasks(experiment, pair), experiment.claims, waits=False)
        return ""
    with locked(folder / CLAIMS / "first", waits=False) as is_ours:
        if not is_ours:
            raise ValueError(f"another sweep is at work in {folder}")
        experiment, pair = _opened(sweep, folder, load, steps if retry_failed else None)
        save_prompts(experiment.prompts, folder / PROMPTS_FILE)
        steps.run("read prompts", lambda: read_all_prompts(experiment, pair))
        steps.run("generate", lambda: share(_tasks(experiment, pair), experiment.claims))
        for name in MEASURES:
            steps.run(f"measure {name}", partial(measure, experiment, name, pair))
        shown = write_sweep_results(experiment, sweep)
    return f"{shown}\n\n{_where_to_look(folder, sum(steps.seconds.values()))}"


def _opened(
    sweep: Sweep, folder: Path, load: Callable[[], ModelPair], retried: Steps | None = None
) -> tuple[Experiment, ModelPair]:
    """The experiment and the pair, once it is known to decode all prompts by all rules.

    retried: steps to forget if some generations or scores failed.
    """
    index = _index(sweep, folder) if sweep.passages else None
    experiment = sweep_experiment(sweep, folder, index)
    if retried is not None and forget_failures(experiment) + forget_failed_scores(experiment):
        retried.forget()
    if sweep.engine == "vllm":
        draw_by_vllm(sweep, experiment)
    pair = load()
    check_requests(experiment, pair)
    check_held_out(experiment, pair)
    return experiment, pair


def _index(sweep: Sweep, folder: Path) -> PassageIndex:
    """The index of passages, which the first process makes; the others wait, and open it."""
    corpus = sweep.path("passages", sweep.passages)
    with locked(folder / CLAIMS / "index"):
        if not sweep.encoder:
            return WordIndex(corpus, folder / "passages.bm25")
        return DenseIndex(corpus, folder / "passages.dense", sweep.model(sweep.encoder))


def _tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
    return [*generation_tasks(experiment, pair), *utility_tasks(experiment, pair)]


def _where_to_look(folder: Path, seconds: float) -> str:
    return f"""Done: {seconds / 60:.1f} minutes of work. Where to look:
  {folder}/table.md, .tex            every setting
  {folder}/high_protection.md, .tex  the best setting of each method that protects
  {folder}/methods.png               copying against utility, the Pareto front marked
  {folder}/report.html               all of it on a page, with texts token by token
  {folder}/results.json              every figure; it follows from generations/, ledgers/
"""
