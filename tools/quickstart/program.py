"""The quickstart: from a real language model to a trade-off curve on one machine."""

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from anchored import Ledger, ModelPair, verify
from anchored.decode.ledger import ledger_parts
from anchored.decode.pair.folder import ModelFolder, model_identity
from anchored.decode.pair_options import ModelOptions
from anchored.durable_files import write_durably
from anchored.eval.copying.metrics import METRIC_SET
from anchored.eval.experiments.experiment import Experiment, budget_sweep
from anchored.eval.experiments.generations import generate_all, read_generations
from anchored.eval.experiments.measures import VERBATIM, Row, measure, summarize, utilities
from anchored.eval.experiments.plan import method_settings
from anchored.eval.experiments.results import write_budget_results
from anchored.eval.experiments.steps import Steps
from anchored.eval.recorded_texts import ALONE
from anchored.eval.report.tables import RECITED_COLUMN, SETTING_COLUMN, Column, terminal_table
from anchored.inputs import json_objects

from . import pretraining
from .adapter import read_facts, train_adapter
from .corpus import HELD_OUT, gather, read_sources
from .findings import ACCURACY, findings
from .look import show
from .options import LookConfig, QuickstartConfig
from .preset import STAGES, Folders, Preset, load_preset, stage_tables
from .protected_works import read_works, write_inputs
from .questions import FACTS, TASK, held_out_text, write_task
from .small_model import name_base, write_risky_model, write_small_model

RESULTS_SCHEMA = "anchored-quickstart/2"


COLUMNS = (
    SETTING_COLUMN,
    Column("word_lcs", "longest copy", num_decimals=1),
    Column(ACCURACY, "questions right", num_decimals=2),
    replace(RECITED_COLUMN, title="worst proved"),
    Column("spent", num_decimals=1),
)
"""The columns that the terminal shows, in 80 characters; table.md has every column."""
NOTE = (
    "The longest copy, in words, and the nats spent are means over the works; no work\n"
    "is recited with a larger chance than the worst proved."
)
WHY_BYTES = (
    "Hardly anything is copied: the texts are of some 20 words, and the safe model,\n"
    "which has read 1.4 MB of Python's documentation, gives words of a story so\n"
    "little probability that these budgets cannot pay for them."
)


def look(config: LookConfig) -> int:
    """Make the quickstart's pair unless it is there, and print a first look at it; returns the exit
    status."""
    quickstart = QuickstartConfig(output=config.output)
    _, pair = _make_pair(_steps(quickstart), quickstart, Folders(config.output))
    show(pair, read_works())
    return 0


def run(config: QuickstartConfig) -> int:
    """Do every step that is not done yet and print where to look; returns the exit status."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if config.model is not None:  # one of the Hub is there, or named, before any work
        ModelFolder.find(config.model)
    preset, folders, steps = load_preset(config.preset), Folders(config.output), _steps(config)
    safe, pair = _make_pair(steps, config, folders)
    show(pair, preset.works())
    print()
    steps.run("write prompts and questions", lambda: _write_inputs(folders, preset))
    experiment = _experiment(folders, preset)
    _measure(steps, "", experiment, pair)
    steps.run("bound recitals", partial(measure, experiment, VERBATIM, pair))
    steps.run("measure utility", partial(measure, experiment, "utility", pair))
    steps.run("answer questions", partial(measure, experiment, "questions", pair))
    middle = experiment.budgets[len(experiment.budgets) // 2]
    ledger = experiment.folder / read_generations(experiment, middle)[0]["ledger"]
    steps.run("verify a ledger", lambda: _verify(ledger, pair))
    rows = summarize(experiment)
    facts = {name: figures[FACTS] for name, figures in utilities(experiment).items()}
    judged = findings(rows, facts, shows_effects=preset.shows_effects)
    about = {
        "schema": RESULTS_SCHEMA,
        "settings": {**asdict(preset), "model": str(config.model or ""), "train": config.train},
        "findings": [asdict(finding) for finding in judged],
        "seconds": steps.seconds,
    }
    write_budget_results(experiment, rows, about)
    print(*judged, "", _table(rows), "", NOTE, sep="\n")
    if config.bytes:
        _measure_at_bytes(steps, config.preset, folders, experiment)
    print(_where_to_look(folders, safe, ledger, sum(steps.seconds.values())))
    return 0


def _steps(config: QuickstartConfig) -> Steps:
    return Steps(config.output, identity(config), owner="quickstart")


def identity(config: QuickstartConfig) -> dict[str, Any]:
    """All that decides the results: a folder belongs to one of these."""
    return {
        "preset": asdict(load_preset(config.preset)),
        **{stage: stage_tables(config.preset, stage) for stage in STAGES},
        "metric_set": METRIC_SET,
        "model": "" if config.model is None else model_identity(config.model),
        "train": config.train,
    }


def _make_pair(steps: Steps, config: QuickstartConfig, folders: Folders) -> tuple[Path, ModelPair]:
    """Make the safe and the risky model; the folder or Hub id of the former, and both loaded."""
    safe = folders.small_model if config.model is None else Path(config.model)
    if config.model is None:
        steps.run("read the model", lambda: write_small_model(folders.small_model))

    def make_risky() -> None:
        shutil.rmtree(folders.risky, ignore_errors=True)  # of an interrupted step
        if config.train or config.model is not None:
            _train(safe, folders, load_preset(config.preset))
            if config.model is None:
                name_base(folders.risky, safe)
        else:
            write_risky_model(folders.risky, safe)

    steps.run("make the risky model", make_risky)
    return safe, ModelOptions(safe=safe, risky=folders.risky, device="cpu").load()


def _train(safe: Path, folders: Folders, preset: Preset) -> None:
    """Train the risky model on the works and the facts, next to openly licensed text."""
    gather(folders.corpus, max_bytes=preset.bytes.corpus_bytes)
    train_adapter(
        safe.resolve() if safe.exists() else safe,
        folders.risky,
        works=preset.works(),
        facts=read_facts(),
        texts=[text for source in read_sources(folders.corpus) for text in source.texts],
        epochs=preset.epochs,
    )


def _write_inputs(folders: Folders, preset: Preset) -> None:
    """Write the prompts, the questions and the held-out texts."""
    facts = read_facts()[: preset.num_facts]
    gather(folders.corpus, max_bytes=preset.bytes.corpus_bytes)
    write_inputs(preset.works(), folders.prompts, folders.works)
    write_task(facts, folders.tasks)
    documents = [text for source in read_sources(folders.corpus) for text in source.heldout]
    for name, texts in ((HELD_OUT, documents), (FACTS, held_out_text(facts))):
        records = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        write_durably(folders.held_out(name), records)


def _experiment(folders: Folders, preset: Preset) -> Experiment:
    held_out = {
        name: [str(row["text"]) for _, row in json_objects(folders.held_out(name))]
        for name in (HELD_OUT, FACTS)
    }
    return Experiment(
        folder=folders.root,
        prompts=preset.prompts(),
        settings=budget_sweep(preset.ks, chain.from_iterable(map(method_settings, preset.others))),
        seeds=preset.seeds,
        max_new_tokens=preset.max_new_tokens,
        repetition_penalty=preset.repetition_penalty,
        held_out=held_out,
        extra=FACTS,
        num_excerpts=preset.num_excerpts,
        excerpt_tokens=preset.excerpt_tokens,
        task_folder=folders.tasks,
        tasks=(TASK,),
    )


def _measure(steps: Steps, prefix: str, experiment: Experiment, pair: ModelPair) -> None:
    steps.run(f"{prefix}generate", lambda: generate_all(experiment, pair))
    steps.run(f"{prefix}measure copying", lambda: measure(experiment, "copying", pair))


def _measure_at_bytes(steps: Steps, preset_name: str, folders: Folders, tokens: Experiment) -> None:
    """Both halves of the paper: the safe model made here with the same risky model."""
    preset = load_preset(preset_name)
    prefix = "bytes: "
    steps.run(f"{prefix}train a tokenizer", lambda: pretraining.make_tokenizer(folders, preset))
    steps.run(f"{prefix}tokenize", lambda: pretraining.write_shards(folders))
    for stage in STAGES:
        train = partial(pretraining.train, folders, preset_name, stage)
        steps.run(f"{prefix}pretrain {stage}", train)
    steps.run(f"{prefix}export", lambda: pretraining.export(folders))
    experiment = replace(
        tokens,
        folder=folders.bytes,
        prompts=tokens.prompts[: preset.bytes.num_works],
        settings=budget_sweep(preset.bytes.ks),
        max_new_tokens=preset.bytes.max_new_tokens,
        held_out={},
        tasks=(),
    )
    pair = ModelOptions(safe=folders.miniature, risky=folders.risky, device="cpu").load()
    _measure(steps, prefix, experiment, pair)
    about = {"seeds": preset.seeds, "level": "byte"}
    rows = summarize(experiment)
    write_budget_results(experiment, rows, {"schema": RESULTS_SCHEMA, "settings": about})
    head = "The safe model made here with the same risky model, byte by byte:"
    print(head, _table(rows), WHY_BYTES, sep="\n")


def _table(rows: Sequence[Row]) -> str:
    """The rows in those of COLUMNS that have figures; a model alone is called by its name."""
    named = [{**row, "setting": ALONE.get(row["setting"], row["setting"])} for row in rows]
    filled = {name for row in rows for name, figure in row.items() if figure is not None}
    return terminal_table(named, [column for column in COLUMNS if column.key in filled])


def _verify(path: Path, pair: ModelPair) -> None:
    report = verify(Ledger.load(path, ledger_parts(path)[0]), pair)
    print(f"a ledger of {path.name}: {report}")
    if not report.is_ok:
        raise ValueError(f"a ledger of this run was not verified: {report}")


def _where_to_look(folders: Folders, safe: Path, ledger: Path, seconds: float) -> str:
    pair = f"--safe {safe} --risky {folders.risky}"
    return f"""
Done: {seconds / 60:.1f} minutes of work. Where to look:
  {folders.root}/proved_{TASK}.png  what each rule proves against accuracy on the facts
  {folders.root}/trade_off.png   copying against bits per byte of the facts
  {folders.root}/report.html     all of it on a page, with texts side by side
  {folders.root}/budgets.png     how three generations spent their budgets
  {folders.root}/table.md        the table above with every column; results.json has all figures
What to try next:
  anchored quickstart --bytes    a safe model that is pretrained here, byte by byte
  anchored generate {pair} --rule pathwise --bank 20 --prompt-file {folders.prompts}
  anchored verify {pair} --ledger {ledger} --limit 1
"""
