"""Measures of an experiment: copying, held-out bits, answers to questions, odds of references.

A measure takes an experiment with its recorded rows, and the pair, and writes rows; a new one is a
function, here or in another file, and a line in MEASURES.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Final

import numpy as np
from tqdm import tqdm

from ... import Anchored, Decoder, ModelPair, Pathwise, SafeOnly
from ...decode.engine.score import Score
from ...decode.rules.rule import Rule, takes_passage
from ..copying.literal import copying_results
from ..harness.model import AnchoredLM
from ..harness.tasks import task_figures
from ..quality.bits_per_byte import PROMPT_TOKENS, Excerpt, excerpts, utility
from ..recorded_texts import RecordedText, has_open_seam, write_evaluation
from ..statistics import json_value
from .experiment import Experiment, Setting
from .generations import decoders, passages_for, read_generations
from .steps import Task, share
from .summary import VERBATIM

logger = logging.getLogger(__name__)


def measure(experiment: Experiment, name: str, pair: ModelPair) -> None:
    """Take the measure of this name in MEASURES and record its rows."""
    MEASURES[name](experiment, pair)


def _copying(experiment: Experiment, pair: ModelPair) -> None:
    """Six metrics of every text with a reference, in the file that `anchored evaluate` reads."""
    texts = generated_texts(experiment)
    results = copying_results(texts, known=experiment.copying, progress=True)
    write_evaluation(experiment.folder, "copying", results)


def generated_texts(experiment: Experiment) -> list[RecordedText]:
    """The generations of every prompt that has a reference."""
    references = {prompt.id: prompt.reference for prompt in experiment.prompts if prompt.reference}
    return [
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


def _utility(experiment: Experiment, pair: ModelPair) -> None:
    """Held-out bits of every setting on every held-out set."""
    share(utility_tasks(experiment, pair), experiment.claims)
    rows = chain.from_iterable(map(experiment.read_rows, map(_utility_rows, experiment.settings)))
    sets = list(experiment.held_out)
    experiment.write_rows("utility", sorted(rows, key=lambda row: sets.index(row["held_out"])))


def utility_tasks(experiment: Experiment, pair: ModelPair) -> list[Task]:
    """One task per setting, which records its held-out bits for the measure "utility"."""
    decoder_of = decoders(experiment, pair)
    excerpts_of = cache(lambda name: _excerpts(experiment, pair, experiment.held_out[name]))

    def score(setting: Setting) -> None:
        rows, decoder = [], decoder_of(setting)
        for name in tqdm(experiment.held_out, f"bits per byte, {setting.name}"):
            scored, nearest = excerpts_of(name)
            if decoder.level.name == "byte" or not decoder.level.compares_models:
                scored = [each.in_symbols(pair.tokenizer, decoder.level) for each in scored]
            result = utility(decoder, scored, **passages_for(setting, nearest))
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
    """Raise ValueError for a held-out set without a text that could be scored."""
    length = experiment.excerpt_tokens
    for name, texts in experiment.held_out.items():
        if not any(excerpts(pair.tokenizer, [text], num_tokens=length) for text in texts):
            raise ValueError(
                f"held-out set {name}: no text has more than the {PROMPT_TOKENS} tokens that come "
                "before what is scored"
            )


def forget_failed_scores(experiment: Experiment) -> int:
    """Make held-out scores with an error count as missing; returns the number of settings."""
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
    """Held-out passages, and the nearest passage of a corpus of protected texts to each."""
    cut = excerpts(pair.tokenizer, texts, num_tokens=experiment.excerpt_tokens)
    chosen = cut[:: max(1, len(cut) // experiment.num_excerpts)][: experiment.num_excerpts]
    if experiment.index is None:
        return chosen, [None] * len(chosen)
    tokens = [excerpt.prompt_token_ids for excerpt in chosen]
    prompts = [str(pair.tokenizer.decode(ids, skip_special_tokens=True)) for ids in tokens]
    passages = experiment.index.search(prompts)
    return chosen, [passage.text if passage else "" for passage in passages]


def _questions(experiment: Experiment, pair: ModelPair) -> None:
    """Accuracy on the tasks of lm-eval, of every setting whose rule reads no passage.

    Questions charge no debt, as they hold no protected text: the names in them would else be paid
    for before the first of an answer's few tokens.
    """
    rows, decoder_of = [], decoders(experiment, pair)
    for setting in experiment.settings:
        if not experiment.tasks or takes_passage(setting.rule):
            continue
        rule = setting.rule
        if isinstance(rule, Anchored | Pathwise) and rule.charges_debt:
            rule = replace(rule, debt="none")
        model = AnchoredLM(decoder_of(replace(setting, rule=rule)))
        for task in experiment.tasks:
            figures = task_figures(model, task, experiment.task_folder)
            assert figures is not None  # of one process
            rows.append({"setting": setting.name, "task": task, **figures})
    experiment.write_rows("questions", rows)


def _verbatim(experiment: Experiment, pair: ModelPair) -> None:
    """The safe model's log-probability of each reference, from which bounds follow."""
    log_probs = reference_log_probs(experiment, pair)
    rows = [{"id": name, "safe_log_prob": nats} for name, nats in log_probs.items()]
    experiment.write_rows(VERBATIM, rows)


def reference_log_probs(experiment: Experiment, pair: ModelPair) -> dict[str, float]:
    """log p_s of each prompt's reference, as far as a generation reaches and warped as that is.

    Of a reference with several scores the figure is that of all together. Prompts without a
    reference have none, nor do those whose score fails, with a warning.
    """
    log_probs: dict[str, float] = {}
    for name, scores in reference_scores(experiment, pair, SafeOnly()).items():
        if error := next((score.error for score in scores if score.error), ""):
            logger.warning("the reference of %s has no probability: %s", name, error)
        else:
            both = np.logaddexp.reduce([score.log_prob for score in scores])
            log_probs[name] = min(0.0, float(both))
    return log_probs


def reference_scores(experiment: Experiment, pair: ModelPair, rule: Rule) -> dict[str, list[Score]]:
    """Scores of each prompt's reference under a rule, as far as a generation reaches, by id.

    If the data set dropped the space between prompt and reference, a text may recite it with
    that space or without: then there are two. Prompts without a reference are left out.
    """
    events = []
    for prompt in experiment.prompts:
        spaces = ("", " ") if has_open_seam(prompt.prompt, prompt.reference) else ("",)
        events += [(prompt, space + prompt.reference) for space in spaces if prompt.reference]
    if not events:
        return {}
    decoder = Decoder(pair, rule, level=experiment.level, batch_size=experiment.batch_size)
    length = decoder.level.horizon(experiment.max_new_tokens, None)
    scores = decoder.score(
        [prompt.prompt for prompt, _ in events],
        [decoder.level.encode_continuation(reference)[:length] for _, reference in events],
        temperature=experiment.temperature,
        repetition_penalty=experiment.repetition_penalty,
    )
    by_id: dict[str, list[Score]] = {}
    for (prompt, _), score in zip(events, scores, strict=True):
        by_id.setdefault(prompt.id, []).append(score)
    return by_id


MEASURES: Final[dict[str, Callable[[Experiment, ModelPair], None]]] = {
    "copying": _copying,
    "utility": _utility,
    "questions": _questions,
    VERBATIM: _verbatim,
}
"""Measures by name; later ones may read the rows of earlier ones."""
