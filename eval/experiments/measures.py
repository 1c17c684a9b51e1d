"""What generations copied, what the settings are worth, and how they answer questions.

A measure takes an experiment with its recorded rows, and the pair, and gives rows by name; a new
one is a function here or in a file of its own, and a line in MEASURES.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Final

from tqdm import tqdm

from ... import ModelPair
from ..copying.metrics import copying_scores, copying_summary
from ..harness.model import AnchoredLM
from ..harness.tasks import local_task_results
from ..quality.bits_per_byte import Excerpt, excerpts, utility
from .experiment import Experiment, Rows
from .generations import decoders, read_generations
from .summary import recommended, summarize


def measure(experiment: Experiment, name: str, pair: ModelPair) -> None:
    """Take the measure of this name in MEASURES and record its rows."""
    for table, rows in MEASURES[name](experiment, pair).items():
        experiment.write_rows(table, rows)


def _copying(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """Six metrics of every generation against the continuation of its work; means by seed."""
    references = {prompt.id: prompt.reference for prompt in experiment.prompts}
    rows, means = [], []
    for setting in tqdm(experiment.settings, "copying"):
        generations = read_generations(experiment, setting)
        pairs = [(row["text"], references[row["work"]]) for row in generations]
        scores = list(zip(generations, copying_scores(pairs, experiment.copying), strict=True))
        for row, score in scores:
            key = {"setting": setting.name, "work": row["work"], "seed": row["seed"]}
            rows.append({**key, **score.as_row()})
        for seed in experiment.seeds:
            of_seed = [score for row, score in scores if row["seed"] == seed]
            mean = copying_summary(of_seed, experiment.copying)
            means.append({"setting": setting.name, "seed": seed, **mean})
    return {"copying": rows, "copying_means": means}


def _utility(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """Held-out bits of every setting on every held-out set."""
    rows = []
    for name, texts in experiment.held_out.items():
        passages, decoder_of = _passages(experiment, pair, texts), decoders(experiment, pair)
        for setting in tqdm(experiment.settings, f"bits per byte, {name}"):
            result = utility(decoder_of(setting), passages)
            rows.append({"setting": setting.name, "held_out": name, **asdict(result)})
    return {"utility": rows}


def _passages(experiment: Experiment, pair: ModelPair, texts: Sequence[str]) -> list[Excerpt]:
    passages = excerpts(pair.tokenizer, texts, num_tokens=experiment.excerpt_tokens)
    stride = max(1, len(passages) // experiment.num_excerpts)
    passages = passages[::stride][: experiment.num_excerpts]
    if pair.shares_tokens:
        return passages
    return [passage.in_bytes(pair.tokenizer) for passage in passages]


def _questions(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """Accuracy of both models alone and of the recommended budget on the tasks of lm-eval."""
    best = recommended(summarize(experiment)).setting
    rows, decoder_of = [], decoders(experiment, pair)
    for setting in experiment.settings:
        if setting.k is None or setting == best:
            model = AnchoredLM(decoder_of(setting))
            answers = local_task_results(model, experiment.task_folder, experiment.tasks)
            rows += [{"setting": setting.name, "task": t, **f} for t, f in answers.items()]
    return {"questions": rows}


MEASURES: Final[dict[str, Callable[[Experiment, ModelPair], dict[str, Rows]]]] = {
    "copying": _copying,
    "utility": _utility,
    "questions": _questions,
}
"""By name; later ones may read the rows of earlier ones."""
