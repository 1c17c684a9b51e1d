"""From text to a trade-off curve on one machine."""

import json
import logging
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from anchored import Ledger, ModelPair, verify
from anchored.decode.pair_options import ModelOptions
from anchored.eval.copying.metrics import METRIC_SET
from anchored.eval.experiments import experiment as experiment_steps
from anchored.eval.experiments.experiment import Experiment, Steps, budget_sweep
from anchored.eval.experiments.generations import generate_all, read_generations
from anchored.eval.experiments.measures import measure
from anchored.eval.experiments.results import terminal_report, write_budget_results
from anchored.eval.experiments.summary import summarize
from anchored.tools.commands.training.training_options import QuickstartConfig

from . import training
from .corpus import EXTRA, read
from .findings import findings
from .multiple_choice import EXTRA_TASK, MIXTURE_TASK, write_tasks
from .preset import RUNS, Folders, Preset, load_preset, run_config
from .protected_works import write_inputs

RESULTS_SCHEMA = "anchored-quickstart/1"


def run(config: QuickstartConfig) -> int:
    """Do every step that is not done yet and print where to look; returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    logging.getLogger(experiment_steps.__name__).setLevel(logging.INFO)  # titles of the steps
    preset, folders = load_preset(config.preset), Folders(config.output)
    # All that decides the results: a folder belongs to one of these.
    runs = [run_config(preset, name, folders) for name in RUNS]
    settings = json.dumps([asdict(preset), runs, METRIC_SET])
    steps = Steps(config.output, settings, owner="quickstart")
    _train(steps, folders, preset)
    safe, risky = (folders.model(name) for name in ("safe", "risky"))
    pair = ModelOptions(safe=safe, risky=risky, device="cpu").pair()
    experiment = _experiment(folders, preset)
    _measure(steps, experiment, folders, preset, pair)
    judged = findings(summarize(experiment), shows_effects=preset.shows_effects)
    about = {
        "schema": RESULTS_SCHEMA,
        "settings": asdict(preset),
        "seconds": steps.seconds,
        "findings": [asdict(finding) for finding in judged],
    }
    write_budget_results(experiment, about)
    print(terminal_report(experiment, judged))
    print(_where_to_look(folders, _example_ledger(experiment), sum(steps.seconds.values())))
    return 0


def _train(steps: Steps, folders: Folders, preset: Preset) -> None:
    steps.run("gather text", lambda: training.gather_corpus(folders, preset))
    steps.run("train tokenizers", lambda: training.make_tokenizers(folders, preset))
    steps.run("tokenize", lambda: training.tokenize(folders, preset))
    for name in RUNS:
        steps.run(f"pretrain {name}", partial(training.train, folders, preset, name))
    steps.run("export", lambda: training.export(folders, preset))
    steps.run("write prompts", lambda: write_inputs(preset.works(), folders.prompts, folders.works))


def _experiment(folders: Folders, preset: Preset) -> Experiment:
    corpus = read(folders.corpus)
    mixture = [document.text for source in corpus.sources for document in source.heldout]
    return Experiment(
        folder=folders.root,
        prompts=preset.prompts(),
        settings=budget_sweep(preset.ks),
        seeds=preset.seeds,
        max_new_tokens=preset.max_new_tokens,
        repetition_penalty=preset.repetition_penalty,
        held_out={"mixture": mixture, EXTRA: [each.text for each in corpus.extra.heldout]},
        extra=EXTRA,
        num_excerpts=preset.num_excerpts,
        excerpt_tokens=preset.excerpt_tokens,
        task_folder=folders.tasks,
        tasks=(MIXTURE_TASK, EXTRA_TASK),
    )


def _measure(
    steps: Steps, experiment: Experiment, folders: Folders, preset: Preset, pair: ModelPair
) -> None:
    def answer_questions() -> None:
        write_tasks(read(folders.corpus), folders.tasks, max_items=preset.num_questions)
        measure(experiment, "questions", pair)

    steps.run("generate", lambda: generate_all(experiment, pair))
    steps.run("measure copying", lambda: measure(experiment, "copying", pair))
    steps.run("measure utility", lambda: measure(experiment, "utility", pair))
    steps.run("answer questions", answer_questions)
    steps.run("verify a ledger", lambda: _verify_one(experiment, pair))


def _verify_one(experiment: Experiment, pair: ModelPair) -> None:
    path = _example_ledger(experiment)
    report = verify(Ledger.load(path), pair)
    print(f"ledger {path.name}: {report}")
    if not report.is_ok:
        raise ValueError(f"a ledger of this run was not verified: {report}")


def _example_ledger(experiment: Experiment) -> Path:
    middle = experiment.budgets[len(experiment.budgets) // 2]
    return experiment.folder / read_generations(experiment, middle)[0]["ledger"]


def _where_to_look(folders: Folders, ledger: Path, seconds: float) -> str:
    safe, risky = folders.model("safe"), folders.model("risky")
    pair = f"--safe {safe} --risky {risky}"
    return f"""
Done: {seconds / 60:.1f} minutes of work. Where to look:
  {folders.root}/trade_off.png  copying against utility, one point a budget
  {folders.root}/report.html    all of it on a page, with texts token by token
  {folders.root}/budgets.png    how three generations spent their budgets
  {folders.root}/results.json   every figure; table.md is the table above
What to try next:
  anchored generate {pair} --k 1.0 --prompt "The keeper"
  anchored verify {pair} --ledger {ledger}
"""
