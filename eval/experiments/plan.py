"""A sweep's settings, its experiment, the plan of what it would generate, and its run in a folder,
alone or with other processes that share its settings."""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from ... import Anchored, ModelPair, RiskyOnly, SafeOnly, text_tables
from ...configs.config_file import find_path
from ...decode.rules.registry import make_rule
from ...durable_files import locked, write_durably
from ...inputs import records
from ..recorded_texts import PROMPTS_FILE, RISKY, SAFE
from ..retrieval.passages import DenseIndex, PassageIndex, WordIndex
from .experiment import (
    LOCKS,
    Experiment,
    Prompt,
    Setting,
    check_unique,
    load_prompts,
    save_prompts,
)
from .generations import (
    check_requests,
    draw_by_vllm,
    forget_failures,
    generation_tasks,
    read_all_prompts,
)
from .measures import MEASURES, check_held_out, forget_failed_scores, measure, utility_tasks
from .steps import Steps, Task, share
from .sweep import PAIR, SECTIONS, Method, Sweep

KINDS: Final = ("books", "bios", "news", "creative", "nonliteral", "questions")
"""Kinds of anchored prompts."""
INPUTS: Final = {
    "books": "copy-bench/data/data.literal.json",
    "nonliteral": "copy-bench/data/data.nonliteral.json",
    "questions": "copy-bench/data/data.qa.json",
}
"""The data set of a kind of prompts, from https://github.com/chentong0/copy-bench."""


def sweep_prompts(config: Sweep) -> list[Prompt]:
    """The prompts of all files of a sweep. Raises as `load_prompts` does."""
    paths = [config.path("prompts", name) for name in config.files["prompts"]]
    files = [load_prompts(path)[: config.max_prompts or None] for path in paths]
    prompts = list(itertools.chain.from_iterable(files))
    check_unique("prompt id", [prompt.id for prompt in prompts])
    return prompts


def sweep_settings(config: Sweep, blocked: Path | None = None) -> tuple[Setting, ...]:
    """p_s, p_r, then every setting of the methods, by the sections of the table. blocked: file of
    the prompts' passages, which MemFree blocks; None before they are known. Raises ValueError for
    unknown rules and settings and for two settings that are the same."""
    settings = [Setting(SAFE, SafeOnly(), method=SAFE), Setting(RISKY, RiskyOnly(), method=RISKY)]
    for method in sorted(config.methods, key=lambda method: SECTIONS.index(method.section)):
        settings += method_settings(method, blocked)
    check_unique("setting", [setting.file_name for setting in settings])
    for first, second in itertools.combinations(settings, 2):
        if first.rule == second.rule:
            raise ValueError(
                f"{first.name} and {second.name} are the same setting: give one method both figures"
            )
    return tuple(settings)


def method_settings(method: Method, blocked: Path | None = None) -> Iterator[Setting]:
    """A setting for each combination of the values that are lists, named by these values. Raises
    ValueError for an unknown rule or setting. blocked: as of `sweep_settings`."""
    swept = {name: value for name, value in method.settings.items() if isinstance(value, list)}
    passages: dict[str, Any] = {}
    if method.rule == "memfree":  # a file, so that no ledger repeats all passages of the run
        passages = {"passages": []} if blocked is None else {"corpus": str(blocked)}
    for name, values in swept.items():
        if not values:
            raise ValueError(f"{method.label}: the list of {name} is empty")
    for combination in itertools.product(*swept.values()):
        chosen = dict(zip(swept, combination, strict=True))
        shown = {n: f"{v:g}" if isinstance(v, float) else v for n, v in chosen.items()}
        name = ", ".join([method.label, *(f"{n}={value}" for n, value in shown.items())])
        try:
            rule = make_rule(method.rule, passages | method.settings | chosen)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        k = rule.k if method.is_swept and isinstance(rule, Anchored) else None
        yield Setting(name, rule, k, method.label)


def sweep_experiment(config: Sweep, folder: Path, index: PassageIndex | None) -> Experiment:
    """The experiment of a sweep, recorded in `folder`. index: of the corpus, if one is named.
    Raises as `sweep_prompts` and `sweep_settings` do."""
    prompts = sweep_prompts(config)
    if index is not None:
        nearest = index.search([prompt.prompt for prompt in prompts])
        prompts = [
            replace(prompt, passage=passage.text if passage else "")
            if prompt.passage is None
            else prompt
            for prompt, passage in zip(prompts, nearest, strict=True)
        ]
    blocked = None
    if passages := dict.fromkeys(prompt.passage for prompt in prompts if prompt.passage):
        blocked = folder / "blocked.jsonl"
        write_durably(blocked, "".join(json.dumps({"text": text}) + "\n" for text in passages))
    return Experiment(
        folder=folder,
        prompts=prompts,
        settings=sweep_settings(config, blocked),
        **config.options,
        held_out={
            name: [row["text"] for file in files for row in records(config.path("held_out", file))]
            for name, files in config.held_out.items()
        },
        extra=config.utility_set,
        task_folder=config.path("task_folder", config.task_folder) if config.tasks else Path(),
        tasks=tuple(config.tasks),
        index=index,
    )


def sweep_plan(sweep: Sweep) -> str:
    """The settings, the amount of text, the placement of the pair and missing inputs. Raises
    ValueError for invalid prompts, rules, settings and options of the pair."""
    settings, missing = sweep_settings(sweep), missing_inputs(sweep)
    num_prompts, remark = _num_prompts(sweep, missing)
    num_seeds = len(sweep.seeds)
    num_texts = len(settings) * num_prompts * num_seeds
    rows = [
        [setting.name, setting.rule.name, "yes" if setting.rule.is_certified else "no"]
        for setting in settings
    ]
    lines = [
        f"{text_tables.aligned(['setting', 'rule', 'certified'], rows)}\n",
        f"{len(settings)} settings x {num_prompts} prompts x {num_seeds} seeds = {num_texts} "
        f"generations of at most {sweep.max_new_tokens} tokens: {num_texts * sweep.max_new_tokens} "
        f"tokens (four bytes each at byte level){remark}",
    ]
    if not missing.keys() & set(PAIR):
        device = sweep.models.device or "CUDA where there is one"
        options = "".join(f", {name} = {v}" for name, v in sweep.placement.options.items())
        lines.append(f"each process: {sweep.placement.gpus} GPU(s), device = {device}{options}")
    return "\n".join([*lines, *_missing_lines(sweep, missing)])


def missing_inputs(sweep: Sweep) -> dict[str, list[str]]:
    """Names of the missing inputs, by the key that names them. A model that a command would make in
    `inputs` is an input; any other may be an id of the Hub."""
    named = dict(sweep.files)
    if sweep.made_by:
        named |= {key: [getattr(sweep, key)] for key in PAIR}
    missing = {
        key: [name for name in dict.fromkeys(names) if find_path(name, sweep.places) is None]
        for key, names in named.items()
    }
    return {key: names for key, names in missing.items() if names}


def _num_prompts(sweep: Sweep, missing: dict[str, list[str]]) -> tuple[int, str]:
    """(number of prompts planned for, a remark if that is not their count)."""
    if "prompts" not in missing:
        return len(sweep_prompts(sweep)), ""
    most = sweep.max_prompts * len(sweep.files["prompts"])
    if known := min(filter(None, (sweep.num_prompts, most)), default=0):
        return known, "; prompts are missing, and counted as the config says"
    return 1, "; prompts are missing: all figures are for one of them"


def _missing_lines(sweep: Sweep, missing: dict[str, list[str]]) -> Iterator[str]:
    """Each missing input, and the command that makes it."""
    if not missing:
        return
    count = sum(map(len, missing.values()))
    yield f"\nmissing: {count} {'input' if count == 1 else 'inputs'}, before the sweep can begin"
    for key, names in missing.items():
        for name in names:
            file = sweep.places[-1] / name
            yield f"  {key}: {file}\n    {sweep.made_by or how_to_make(key, file)}"


def how_to_make(key: str, file: Path) -> str:
    """The command that makes an input, or its form if no command makes it."""
    name = file.name.split(".")[0]
    if key == "prompts":
        kind = name if name in KINDS else f"{{{','.join(KINDS)}}}"
        return f"anchored prompts --kind {kind} --input {INPUTS.get(name, 'DATA')} --output {file}"
    if key == "held_out":
        return (
            f"anchored tokenize --source {name} --heldout-fraction 0.001 ... writes such texts in "
            'its heldout/; any JSON lines {"text": ...} do, or none: held_out = { '
            f"{name} = [] }}"
        )
    if key == "passages":
        return 'JSON lines {"text": ...}, as the texts of the works that are prompted'
    return "YAML of a task of lm-eval"


def run_sweep(
    sweep: Sweep,
    folder: Path,
    load: Callable[[], ModelPair],
    *,
    is_first: bool = True,
    retry_failed: bool = False,
) -> str:
    """Do what is left of a sweep; returns the text for the terminal. load: gives the pair.
    is_first: of several processes with one folder, one writes the results, when all settings are
    done; the others return "" once no setting is free. retry_failed: repeat the generations that
    are recorded with an error. Raises ValueError for a folder that belongs to something else or
    that another first process works in."""
    steps = Steps(folder, sweep.identity(), owner="sweep")

    def tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
        return [*generation_tasks(experiment, pair), *utility_tasks(experiment, pair)]

    if not is_first:
        experiment, pair = _opened(sweep, folder, load)
        read_all_prompts(experiment, pair)
        share(tasks(experiment, pair), experiment.locks, waits=False)
        return ""
    with locked(folder / LOCKS / "first", waits=False) as is_ours:
        if not is_ours:
            raise ValueError(f"another sweep is at work in {folder}")
        experiment, pair = _opened(sweep, folder, load, steps if retry_failed else None)
        save_prompts(experiment.prompts, folder / PROMPTS_FILE)
        steps.run("read prompts", lambda: read_all_prompts(experiment, pair))
        steps.run("generate", lambda: share(tasks(experiment, pair), experiment.locks))
        for name in MEASURES:
            steps.run(f"measure {name}", partial(measure, experiment, name, pair))
        from .results import write_sweep_results  # pictures, of the extra `plots`

        shown = write_sweep_results(experiment, sweep)
    return f"""{shown}

Done: {sum(steps.seconds.values()) / 60:.1f} minutes of work. Where to look:
  {folder}/table.md, .tex            every setting
  {folder}/high_protection.md, .tex  the best setting of each method that protects
  {folder}/methods.png               copying against utility, the Pareto front marked
  {folder}/report.html               all of it on a page, with texts token by token
  {folder}/results.json              every figure; it follows from generations/, ledgers/
"""


def _opened(
    sweep: Sweep, folder: Path, load: Callable[[], ModelPair], retried: Steps | None = None
) -> tuple[Experiment, ModelPair]:
    """The experiment and the pair, once it is known to decode all prompts by all rules. retried:
    steps to forget if some generations or scores failed."""
    index = passage_index(sweep, folder) if sweep.passages else None
    experiment = sweep_experiment(sweep, folder, index)
    if retried is not None and forget_failures(experiment) + forget_failed_scores(experiment):
        retried.forget()
    if sweep.engine == "vllm":
        draw_by_vllm(sweep, experiment)
    pair = load()
    check_requests(experiment, pair)
    check_held_out(experiment, pair)
    return experiment, pair


def passage_index(sweep: Sweep, folder: Path) -> PassageIndex:
    """The index of passages, which the first process makes; the others wait, and open it."""
    corpus = sweep.path("passages", sweep.passages)
    with locked(folder / LOCKS / "index"):
        if not sweep.encoder:
            return WordIndex(corpus, folder / "passages.bm25")
        return DenseIndex(corpus, folder / "passages.dense", sweep.model(sweep.encoder))
