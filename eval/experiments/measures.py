"""Measures of an experiment, and a row of figures per setting that follows from them.

A measure takes an experiment with its recorded rows, and the pair, and writes rows; a new one is a
function, here or in another file, and a line in MEASURES.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from ... import Anchored, Decoder, ModelPair, Pathwise, SafeOnly
from ...decode.engine.score import Score
from ...decode.event_bound import charged_event_bound
from ...decode.rules.rule import Rule, takes_passage
from ..copying.literal import (
    HIGH_PROTECTION,
    copying_results,
    means_over_seeds,
    or_least,
    paired_ncr,
    scores_by_setting,
)
from ..copying.metrics import METRICS
from ..harness.model import AnchoredLM
from ..harness.tasks import task_figures
from ..quality.bits_per_byte import PROMPT_TOKENS, Excerpt, Utility, excerpts, utility
from ..recorded_texts import ALONE, RISKY, SAFE, RecordedText, has_open_seam, write_evaluation
from ..statistics import json_value, largest_if_known, mean_if_known, mean_of
from .experiment import Experiment, Setting
from .generations import decoders, failed_generations, passages_for, read_generations
from .steps import Task, share

VERBATIM: Final = "verbatim"
"""Name of the rows of the references' log-probabilities under the safe model."""
GOOD_ENOUGH: Final = 0.5
"""Share of the gap in utility that a recommended budget closes: on the quickstart's pair those that
close much more of it prove little of the worst text, or nothing."""
Row = Mapping[str, Any]

logger = logging.getLogger(__name__)


def measure(experiment: Experiment, name: str, pair: ModelPair) -> None:
    """Take the measure of this name in MEASURES and record its rows."""
    MEASURES[name](experiment, pair)


def _copying(experiment: Experiment, pair: ModelPair) -> None:
    """Six metrics of every text with a reference, in the file that `anchored evaluate` reads."""
    texts, known = generated_texts(experiment), experiment.copying
    results = copying_results(texts, known=known, progress=True)
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
    share(utility_tasks(experiment, pair), experiment.locks)
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

    files = [experiment.rows_file(_utility_rows(setting)) for setting in experiment.settings]
    return [
        Task(f"score {setting.file_name}", file, partial(score, setting))
        for setting, file in zip(experiment.settings, files, strict=True)
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
    names = map(_utility_rows, experiment.settings)
    failed = [name for name in names if any("error" in row for row in experiment.read_rows(name))]
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
    """Accuracy on the tasks of lm-eval, of every setting whose rule reads no passage. Questions
    hold no protected text, and charge no debt: their names would be paid for before an answer."""
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
    """log p_s of each prompt's reference, of all of its scores together, as far as a generation
    reaches and warped as that is. A reference whose score fails has none, with a warning."""
    log_probs: dict[str, float] = {}
    for name, scores in reference_scores(experiment, pair, SafeOnly()).items():
        if error := next((score.error for score in scores if score.error), ""):
            logger.warning("the reference of %s has no probability: %s", name, error)
        else:
            both = np.logaddexp.reduce([score.log_prob for score in scores])
            log_probs[name] = min(0.0, float(both))
    return log_probs


def reference_scores(experiment: Experiment, pair: ModelPair, rule: Rule) -> dict[str, list[Score]]:
    """Scores of each prompt's reference under a rule, as far as a generation reaches, by id. If the
    data set dropped the space between prompt and reference, a text may recite it with that space or
    without: then there are two. Prompts without a reference are left out."""
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


def summarize(experiment: Experiment) -> list[dict[str, Any]]:
    """A row of figures per setting, in their order: statistics over seeds of the copying metrics
    (None if no prompt has a reference) and "ncr"; "bits_per_byte/SET" and "bits_per_byte_se/SET" of
    held-out sets; "accuracy/TASK" of lm-eval; "gap_closed", the share of the gap in bits per byte
    between p_s and p_r on the extra set, nan where it is not defined; and those of `_spends`."""
    measured, utility = scores_by_setting(experiment.copying), utilities(experiment)
    safe, risky = measured.get(SAFE, {}), measured.get(RISKY, {})
    accuracy: dict[str, dict[str, float]] = {}
    for row in experiment.read_rows("questions"):
        accuracy.setdefault(row["setting"], {})[f"accuracy/{row['task']}"] = row["acc"]
    log_probs = {row["id"]: row["safe_log_prob"] for row in experiment.read_rows(VERBATIM)}
    bits = {name: sets[experiment.extra].bits_per_byte for name, sets in utility.items()}
    gap, rows = bits[SAFE] - bits[RISKY] if bits else math.nan, []
    for setting in experiment.settings:
        scores, of_sets = measured.get(setting.name, {}), utility.get(setting.name, {})
        is_known = gap > 0 and math.isfinite(bits[setting.name])
        rows.append(
            {
                "setting": setting.name,
                **dict.fromkeys(METRICS),
                **means_over_seeds(scores),
                "ncr": paired_ncr(scores, risky=risky, safe=safe),
                **{f"bits_per_byte/{name}": each.bits_per_byte for name, each in of_sets.items()},
                **accuracy.get(setting.name, {}),
                "gap_closed": (bits[SAFE] - bits[setting.name]) / gap if is_known else math.nan,
                **_spends(experiment, setting, log_probs),
                **{f"bits_per_byte_se/{n}": each.standard_error for n, each in of_sets.items()},
                "k": setting.k,
                **({"method": setting.method} if setting.method else {}),
            }
        )
    return rows


def utilities(experiment: Experiment) -> dict[str, dict[str, Utility]]:
    """Held-out bits by setting and set."""
    utility: dict[str, dict[str, Utility]] = {}
    for row in experiment.read_rows("utility"):
        # JSON holds neither infinitely many bits nor the missing figure of an excerpt that failed.
        missing = math.nan if "error" in row else math.inf
        nats = [missing if each is None else each for each in row["nats"]]
        of_setting = utility.setdefault(row["setting"], {})
        of_setting[row["held_out"]] = Utility(nats=nats, num_bytes=row["num_bytes"])
    return utility


def recommended(rows: Iterable[Row]) -> Row:
    """Choose the bounded setting with NCR >= 0.75 that closes GOOD_ENOUGH of the gap in utility and
    proves most of the worst text, the first of several. If none does, the one with NCR >= 0.75 that
    closes most of it; if none protects, the one that copies least. Measured copying says nothing of
    other prompts, the bound does."""

    def ncr(row: Row) -> float:
        return or_least(mean_of(row["ncr"]))

    bounded = [row for row in rows if row["setting"] not in ALONE]
    protected = [row for row in bounded if ncr(row) >= HIGH_PROTECTION]
    if not protected:
        return max(bounded, key=ncr)
    if good := [row for row in protected if row["gap_closed"] >= GOOD_ENOUGH]:
        return min(good, key=lambda row: 1.0 if row["recited"] is None else row["recited"])
    return max(protected, key=lambda row: or_least(row["gap_closed"]))


def _spends(
    experiment: Experiment, setting: Setting, log_probs: Mapping[str, float]
) -> dict[str, Any]:
    """Means of "spent" and "bound", nats; "recited", the largest probability that bounds leave to
    any text to begin with its reference, that of the worst text, its "log10_recited", and
    "log10_recited_mean" over texts, which is no bound of any; "risky_tokens", the share of tokens
    where the safe model's draw was rejected; "failed", the number of generations with an error,
    which other figures leave out; whether every certified ledger satisfies its bound."""
    rows = read_generations(experiment, setting)
    certified = rows if setting.rule.is_certified else []
    num_tokens = sum(row["num_tokens"] for row in rows)
    num_risky = sum(row["risky_tokens"] for row in rows)
    recited = copy_probabilities(rows, log_probs, setting.rule)
    # A bound below the least float64 counts as that.
    least = sys.float_info.min
    log10s = [None if each is None else math.log10(max(each, least)) for each in recited]
    return {
        "recited": largest_if_known(recited),
        "log10_recited": largest_if_known(log10s),
        "log10_recited_mean": mean_if_known(log10s),
        "spent": mean_if_known(row["spent"] for row in rows),
        "bound": mean_if_known(row["bound"] for row in rows),
        "risky_tokens": num_risky / num_tokens if num_tokens else math.nan,
        "failed": len(failed_generations(experiment, setting)),
        "is_within_bounds": all(row["is_within_bound"] for row in certified),
    }


def copy_probabilities(
    rows: Iterable[Mapping[str, Any]], log_probs: Mapping[str, float], rule: Rule
) -> list[float | None]:
    """The largest probability that each text's bound left to beginning with its reference. None
    without a bound, or without the reference's log-probability. rows: of `read_generations`.
    log_probs: log p_s of the references by id, nats (VERBATIM)."""
    return [
        charged_event_bound(rule.charge, row["bound"], log_probs[row["id"]])
        if row["certified"] and row["bound"] is not None and row["id"] in log_probs
        else None
        for row in rows
    ]
