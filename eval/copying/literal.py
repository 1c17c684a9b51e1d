"""What recorded texts copy of their references: means over seeds, NCR, and the distribution.

A mean hides the few generations that copy much: quantiles and shares of long spans show them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from ..recorded_texts import RISKY, SAFE, RecordedText, grouped
from ..statistics import (
    Array,
    SeedStatistics,
    bootstrap_interval,
    mean_of_largest,
    over_seeds,
    resampled_shares,
)
from .metrics import (
    METRIC_SET,
    METRICS,
    Row,
    copying_scores,
    copying_summary,
    installed_in,
    metric_packages,
    prompt_means,
)
from .ncr import NcrStatistics, copying_reduction, resampled_ncr

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
LONG_SPANS: Final = (6, 20, 50)
"""Words that a copied span may exceed."""
MEASURED: Final = (
    *("rouge1_f1", "rougeL_f1", "word_lcs", "char_lcs", "word_acs", "word_prefix"),
    *("minhash", "jaccard"),
)
"""Figures of one text whose quantiles are recorded."""
NUM_SAMPLES: Final = 20
"""Texts of a prompt that somebody may draw who wants the work; fewer where a run has fewer."""
NUM_RESAMPLES: Final = 2000
"""Of the prompts, for differences: ends of an interval then move by 0.05 of their distance."""
CONFIDENCE: Final = 0.95
Scores = Mapping[tuple[str, int], Row]
"""Rows of one setting's texts, by prompt and seed."""


def copying_rows(texts: Sequence[RecordedText], *, progress: bool = False) -> list[dict[str, Any]]:
    """The six metrics of every text against its reference, a row each, for a results file.

    Warns as `copying_scores` does. Raises: ValueError for a text without a reference.
    """
    for text in texts:
        if not text.reference:
            raise ValueError(f"{text.key} has no reference: give a file of prompts that have them")
    pairs = tqdm(
        [(text.text, text.reference or "") for text in texts], "copying", disable=not progress
    )
    scores = copying_scores(pairs)
    return [{**text.key, **score.as_row()} for text, score in zip(texts, scores, strict=True)]


def scores_by_setting(rows: Iterable[Row]) -> dict[str, Scores]:
    """The rows of each setting, in the order of their first ones."""
    settings = grouped(rows, lambda row: str(row["setting"]))
    return {name: {(row["id"], row["seed"]): row for row in own} for name, own in settings.items()}


def seed_means(scores: Scores) -> list[dict[str, float]]:
    """`copying_summary` of the texts of each seed, in ascending order of the seeds."""
    by_seed = grouped(scores, lambda key: key[1])
    return [copying_summary([scores[key] for key in by_seed[seed]]) for seed in sorted(by_seed)]


def means_over_seeds(scores: Scores) -> dict[str, SeedStatistics]:
    """The six metrics by their names in `METRICS`, then installed ones; {} without scores."""
    means = seed_means(scores)
    names = [*METRICS, *installed_in(means[0])] if means else []
    return {name: over_seeds([of_seed[name] for of_seed in means]) for name in names}


def paired_ncr(setting: Scores, *, risky: Scores, safe: Scores) -> NcrStatistics:
    """NCR of each seed by itself, over seeds, on the texts that the setting and both models have.

    A setting whose copying prompts failed would else be held against texts that it does not have.
    nan where the three have no prompt and seed in common.
    """
    common = [key for key in setting if key in risky and key in safe]
    num_all = len(setting.keys() | risky.keys() | safe.keys())
    if not common:
        return NcrStatistics(math.nan, math.nan, 0, 0, 0, num_all)
    means = [seed_means({key: one[key] for key in common}) for one in (setting, risky, safe)]
    reductions = [
        copying_reduction(own, risky=most, safe=least)
        for own, most, least in zip(*means, strict=True)
    ]
    ncr = over_seeds([fmean(own.values()) if own else math.nan for own in reductions])
    num_metrics = min(map(len, reductions))
    return NcrStatistics(*ncr, num_metrics, num_texts=len(common), num_all_texts=num_all)


def copying_results(
    texts: Sequence[RecordedText],
    *,
    safe: str = SAFE,
    risky: str = RISKY,
    beside: str | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Everything about literal copying, for a results file: settings, and a row for each text.

    beside: the setting that `paired_difference` holds every other one against; None for none.
    """
    settings = dict.fromkeys(text.setting for text in texts)
    missing = [name for name in (beside, safe, risky) if name not in settings]
    if beside is not None and missing:
        raise ValueError(f"there are no texts of {missing[0]!r}, only of {', '.join(settings)}")
    rows = copying_rows(texts, progress=progress)
    scores = scores_by_setting(rows)
    alone = {"safe": scores.get(safe, {}), "risky": scores.get(risky, {})}
    has_ncr = all(alone.values())
    return {
        "schema": "anchored-measure/1",
        "measure": "copying",
        "metric_set": METRIC_SET,
        **metric_packages(),
        "beside": beside,
        "settings": [
            {
                "setting": name,
                "num_texts": len(own),
                **{metric: means._asdict() for metric, means in means_over_seeds(own).items()},
                "ncr": paired_ncr(own, **alone)._asdict() if has_ncr else None,
                **distribution(list(own.values())),
                **extraction(own),
                "difference": paired_difference(own, scores[beside], **alone)
                if beside is not None
                else None,
            }
            for name, own in scores.items()
        ],
        "rows": rows,
    }


def distribution(scores: Sequence[Row]) -> dict[str, Any]:
    """Shares of texts with long copied spans, and quantiles of each metric, as JSON values.

    A quantile is the smallest value that at least this share of texts does not exceed. Spans end
    where the word metrics stop reading: at `MAX_WORDS`.
    """
    longest = np.array([score["word_lcs"] for score in scores])
    quantiles = {
        name: np.quantile(
            [float(score[name]) for score in scores], QUANTILES, method="inverted_cdf"
        )
        for name in MEASURED
    }
    return {
        "share_above": {str(number): float((longest > number).mean()) for number in LONG_SPANS},
        "quantiles": {
            name: dict(zip(map(str, QUANTILES), values.tolist(), strict=True))
            for name, values in quantiles.items()
        },
    }


def extraction(scores: Scores) -> dict[str, Any]:
    """What somebody gets who draws several texts of a prompt and keeps the one that copies most.

    Means over prompts, for `NUM_SAMPLES` texts or as many as every prompt has: the chance that one
    of them has a copied span of more words than `LONG_SPANS`, and the longest span of all. Means
    over single texts hide this: a work that one text in twenty recites is there for the asking.
    """
    by_prompt = grouped(scores, lambda key: key[0])
    longest = [[scores[key]["word_lcs"] for key in keys] for keys in by_prompt.values()]
    count = min(NUM_SAMPLES, *map(len, longest))

    def mean(values: Sequence[Sequence[float]]) -> float:
        return math.fsum(mean_of_largest(own, count) for own in values) / len(values)

    return {
        "num_samples": count,
        "chance_above": {
            str(n): mean([[float(length > n) for length in own] for own in longest])
            for n in LONG_SPANS
        },
        "longest_of_samples": mean(longest),
    }


def paired_difference(
    setting: Scores, beside: Scores, *, risky: Scores, safe: Scores
) -> dict[str, Any] | None:
    """How much more NCR a setting has than another on the same prompts and seeds, with an interval.

    The same draws of both settings and the same prompts: what prompts differ in falls out, so that
    a difference shows which two intervals side by side would hide. Over the texts that all four
    have; None without one, and where the risky model copies no more than the safe one.
    """
    common = [key for key in setting if key in beside and key in risky and key in safe]
    prompts = grouped(common, lambda key: key[0])
    if not prompts:
        return None
    ours, theirs, most, least = (
        prompt_means([one[key] for key in common], prompts)
        for one in (setting, beside, risky, safe)
    )

    def difference(shares: Array) -> Array:
        both = (resampled_ncr(shares, one, risky=most, safe=least) for one in (ours, theirs))
        return np.subtract(*both)

    count = len(prompts)
    value = float(difference(np.full((1, count), 1.0 / count))[0])
    values = difference(resampled_shares(count, num_resamples=NUM_RESAMPLES))
    known = values[~np.isnan(values)]  # a resample without a gap says nothing of the difference
    if math.isnan(value):
        return None
    low, high = bootstrap_interval(known, count=count, confidence=CONFIDENCE)
    return {"ncr": value, "low": low, "high": high, "num_prompts": count}
