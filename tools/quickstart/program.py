"""From text to a trade-off curve on one machine."""

import json
import logging
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path

from anchored import Ledger, ModelPair, verify
from anchored.tools.model_options import ModelOptions
from anchored.tools.training_options import QuickstartConfig

from . import data, generation, measurement, results, training
from .folders import Folders
from .preset import RUNS, Preset, load_preset, run_config
from .steps import Steps
from .summary import recommended, summarize


def run(config: QuickstartConfig) -> int:
    """Do every step that is not done yet and print where to look; returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    logging.getLogger(__package__).setLevel(logging.INFO)  # titles of the steps
    preset, folders = load_preset(config.preset), Folders(config.output)
    steps = Steps(config.output, _settings(config, preset, folders))
    steps.run("gather text", lambda: data.gather_corpus(folders, preset))
    steps.run("train tokenizers", lambda: data.make_tokenizers(folders, preset))
    steps.run("tokenize", lambda: data.tokenize(folders, preset))
    for name in RUNS:
        steps.run(f"pretrain {name}", partial(training.train, folders, config.preset, name))
    steps.run("export", lambda: training.export(folders, preset))
    pair = ModelOptions(
        safe=folders.model("safe"), risky=folders.model("risky"), device="cpu"
    ).pair()
    steps.run("generate", lambda: generation.generate_all(folders, preset, pair))
    steps.run("measure copying", lambda: measurement.measure_copying(folders, preset))
    steps.run("measure utility", lambda: measurement.measure_utility(folders, preset, pair))
    best = recommended(summarize(folders, preset)).setting
    steps.run(
        "answer questions", lambda: measurement.measure_questions(folders, preset, pair, best)
    )
    steps.run("verify a ledger", lambda: _verify_one(folders, preset, pair))
    results.write_results(folders, preset, steps.seconds)
    print(results.terminal_report(folders, preset))
    print(_where_to_look(folders, preset, sum(steps.seconds.values())))
    return 0


def _settings(config: QuickstartConfig, preset: Preset, folders: Folders) -> str:
    """All that decides the results, as text: a folder belongs to one of these."""
    runs = [run_config(config.preset, name, folders.root) for name in RUNS]
    return json.dumps([asdict(preset), runs, measurement.COPYING.metric_set])


def _verify_one(folders: Folders, preset: Preset, pair: ModelPair) -> None:
    report = verify(Ledger.load(_example_ledger(folders, preset)), pair)
    print(f"ledger {_example_ledger(folders, preset).name}: {report}")
    if not report.is_ok:
        raise ValueError(f"a ledger of this run was not verified: {report}")


def _example_ledger(folders: Folders, preset: Preset) -> Path:
    middle = generation.settings(preset)[len(preset.ks) // 2 + 1]
    return folders.root / generation.read_generations(folders, middle)[0]["ledger"]


def _where_to_look(folders: Folders, preset: Preset, seconds: float) -> str:
    safe, risky = folders.model("safe"), folders.model("risky")
    pair = f"--safe {safe} --risky {risky}"
    return f"""
Done: {seconds / 60:.1f} minutes of work. Where to look:
  {folders.root}/trade_off.png      copying against utility, one point a budget
  {folders.root}/side_by_side.html  the texts, copied words and risky tokens marked
  {folders.root}/budgets.png        how three generations spent their budgets
  {folders.root}/results.json       every figure; table.md is the table above
What to try next:
  anchored generate {pair} --k 1.0 --prompt "The keeper"
  anchored verify {pair} --ledger {_example_ledger(folders, preset)}
"""
