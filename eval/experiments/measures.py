"""What generations copied, what the settings are worth, and how they answer questions.

A measure takes an experiment with its recorded rows, and the pair, and gives rows by name; a new
one is a function here or in a file of its own, and a line in MEASURES.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Final

import numpy as np
from tqdm import tqdm

from ... import Anchored, Decoder, ModelPair, SafeOnly
from ...decode.rules.rule import takes_passage
from ..copying.literal import copying_rows
from ..harness.model import AnchoredLM
from ..harness.tasks import task_figures
from ..quality.bits_per_byte import PROMPT_TOKENS, Excerpt, excerpts, utility
from ..recorded_texts import RecordedText, has_open_seam
from ..statistics import json_value
from .experiment import Experiment, Rows, Setting
from .generations import decoders, passages_for, read_generations
from .sharing import Task, share
from .summary import VERBATIM

logger = logging.getLogger(__name__)


def measure(experiment: Experiment, name: str, pair: ModelPair) -> None:
    """Take the measure of this name in MEASURES and record its rows."""
    for table, rows in MEASURES[name](experiment, pair).items():
        experiment.write_rows(table, rows)


def _copying(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """Six metrics of every generation of a prompt that has a reference, against it."""
    references = {prompt.id: prompt.reference for prompt in experiment.prompts if prompt.reference}
    texts = [
        RecordedText(
            setting=setting.name,
            id=row["id"],
            seed=row["seed"],
            text=row["text"],
            reference=references[row["id"]],
        )
        for setting in experiment.settings
        for row in read_generations(experiment, setting)
        if row["id"] in references
    ]
    return {"copying": copying_rows(texts, progress=True)}


def _utility(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """Held-out bits of every setting on every held-out set."""
    share(utility_tasks(experiment, pair), experiment.claims)
    by_setting = [experiment.read_rows(_utility_rows(s)) for s in experiment.settings]
    rows = [row for own in by_setting for row in own]
    sets = list(experiment.held_out)
    return {"utility": sorted(rows, key=lambda row: sets.index(row["held_out"]))}


def utility_tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
    """One task a setting, which records its held-out bits for the measure "utility"."""
    decoder_of = decoders(experiment, pair)
    excerpts_of = cache(lambda name: _excerpts(experiment, pair, experiment.held_out[name]))

    def score(setting: Setting) -> None:
        rows, decoder = [], decoder_of(setting)
        for name in tqdm(experiment.held_out, f"bits per byte, {setting.name}"):
            passages, found = excerpts_of(name)
            if decoder.level.name == "byte" or not decoder.level.compares_models:
                passages = [own.in_symbols(pair.tokenizer, decoder.level) for own in passages]
            result = utility(decoder, passages, **passages_for(setting, found))
            nats = json_value(result.nats)  # a rule may give a text no probability
            key = {"setting": setting.name, "held_out": name}
            failed = {"error": result.error} if result.error else {}
            rows.append({**key, "nats": nats, "num_bytes": result.num_bytes, **failed})
            if result.error:
                logger.warning("%s, held-out text of %s: %s", setting.name, name, result.error)
        experiment.write_rows(_utility_rows(setting), rows)

    return [
        Task(
            name=f"score {setting.file_name}",
            result=experiment.rows_file(_utility_rows(setting)),
            work=partial(score, setting),
        )
        for setting in experiment.settings
    ]


def check_held_out(experiment: Experiment, pair: ModelPair) -> None:
    """Raise ValueError for a held-out set of which nothing could be scored."""
    length = experiment.excerpt_tokens
    for name, texts in experiment.held_out.items():
        if not any(excerpts(pair.tokenizer, [text], num_tokens=length) for text in texts):
            raise ValueError(
                f"held-out set {name}: no text has more than the {PROMPT_TOKENS} tokens that come "
                "before what is scored"
            )


def forget_failed_scores(experiment: Experiment) -> int:
    """Make held-out scores with an error count as missing; of how many settings there are some."""
    failed = [
        name
        for name in map(_utility_rows, experiment.settings)
        if any("error" in row for row in experiment.read_rows(name))
    ]
    for name in failed:
        experiment.rows_file(name).unlink()
    return len(failed)


def _utility_rows(setting: Setting) -> str:
    return f"utility/{setting.file_name}"


def _excerpts(
    experiment: Experiment, pair: ModelPair, texts: Sequence[str]
) -> tuple[list[Excerpt], list[str | None]]:
    """Held-out passages, and what a corpus of protected texts holds nearest to each."""
    found = excerpts(pair.tokenizer, texts, num_tokens=experiment.excerpt_tokens)
    stride = max(1, len(found) // experiment.num_excerpts)
    found = found[::stride][: experiment.num_excerpts]
    tokens = [excerpt.prompt_token_ids for excerpt in found]
    prompts = [str(pair.tokenizer.decode(ids, skip_special_tokens=True)) for ids in tokens]
    nearest: list[str | None] = [None] * len(found)
    if experiment.index is not None:
        nearest = [passage.text for passage in experiment.index.search(prompts)]
    return found, nearest


def _questions(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """Accuracy on the tasks of lm-eval, of every setting whose rule reads no passage.

    Questions charge no debt, as they hold no protected text: what they name would else be paid for
    before the first of an answer's few tokens.
    """
    rows, decoder_of = [], decoders(experiment, pair)
    for setting in experiment.settings:
        if not experiment.tasks or takes_passage(setting.rule):
            continue
        rule = setting.rule
        if isinstance(rule, Anchored) and rule.charges_debt:
            rule = replace(rule, debt="none")
        model = AnchoredLM(decoder_of(replace(setting, rule=rule)))
        for task in experiment.tasks:
            figures = task_figures(model, task, experiment.task_folder)
            assert figures is not None  # of one process
            rows.append({"setting": setting.name, "task": task, **figures})
    return {"questions": rows}


def _verbatim(experiment: Experiment, pair: ModelPair) -> dict[str, Rows]:
    """How likely the safe model is to go on with each reference, from which bounds follow."""
    log_probs = reference_log_probs(experiment, pair)
    return {VERBATIM: [{"id": own, "safe_log_prob": nats} for own, nats in log_probs.items()]}


def reference_log_probs(experiment: Experiment, pair: ModelPair) -> dict[str, float]:
    """By prompt, log p_s of its reference as far as a generation reaches, warped as that is.

    Where the data set dropped the space between prompt and reference, a text may recite it with
    that space or without: the figure is that of both together. Prompts without a reference have
    none, nor have those whose score fails, with a warning.
    """
    events = []
    for prompt in experiment.prompts:
        spaces = ("", " ") if has_open_seam(prompt.prompt, prompt.reference) else ("",)
        events += [(prompt, space + prompt.reference) for space in spaces if prompt.reference]
    if not events:
        return {}
    decoder = Decoder(pair, SafeOnly(), level=experiment.level, batch_size=experiment.batch_size)
    length = decoder.level.horizon(experiment.max_new_tokens, None)
    scores = decoder.score(
        [prompt.prompt for prompt, _ in events],
        [decoder.level.encode_continuation(reference)[:length] for _, reference in events],
        temperature=experiment.temperature,
        repetition_penalty=experiment.repetition_penalty,
    )
    log_probs: dict[str, float] = {}
    failed = {p.id: own.error for (p, _), own in zip(events, scores, strict=True) if own.error}
    for name, error in failed.items():
        logger.warning("the reference of %s has no probability: %s", name, error)
    for (prompt, _), score in zip(events, scores, strict=True):
        if prompt.id not in failed:
            both = np.logaddexp(log_probs.get(prompt.id, -math.inf), score.log_prob)
            log_probs[prompt.id] = min(0.0, float(both))
    return log_probs


MEASURES: Final[dict[str, Callable[[Experiment, ModelPair], dict[str, Rows]]]] = {
    "copying": _copying,
    "utility": _utility,
    "questions": _questions,
    VERBATIM: _verbatim,
}
"""By name; later ones may read the rows of earlier ones."""
