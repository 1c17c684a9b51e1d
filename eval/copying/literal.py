"""What recorded texts copy of their references: means over seeds, NCR, and the distribution.

A mean hides the few generations that copy much: quantiles and shares of long spans show them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
    CopyingScore,
    copying_scores,
    copying_summary,
    installed_in,
    metric_packages,
)
from .ncr import NcrStatistics, ncr_over_seeds, resampled_ncr

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
Scores = Mapping[tuple[str, int], CopyingScore]
"""Scores of one setting's texts, by prompt and seed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LiteralCopying:
    """What the texts of one setting copied."""

    setting: str
    texts: Sequence[RecordedText]
    scores: Scores
    means: dict[str, SeedStatistics]
    """Over seeds, see `means_over_seeds`."""

    def rows(self) -> list[dict[str, object]]:
        """A row for each text, for a results file."""
        return [{**text.key, **self.scores[text.id, text.seed].as_row()} for text in self.texts]


def literal_copying(
    texts: Sequence[RecordedText], *, progress: bool = False
) -> list[LiteralCopying]:
    """The six metrics of every text against its reference, by setting.

    Warns as `copying_scores` does. Raises: ValueError for a text without a reference.
    """
    for text in texts:
        if not text.reference:
            raise ValueError(f"{text.key} has no reference: give a file of prompts that have them")
    pairs = tqdm(
        [(text.text, text.reference or "") for text in texts], "copying", disable=not progress
    )
    scores = copying_scores(pairs)
    settings = grouped(zip(texts, scores, strict=True), lambda pair: pair[0].setting)
    by_setting = {
        name: {(text.id, text.seed): score for text, score in pairs}
        for name, pairs in settings.items()
    }
    return [
        LiteralCopying(
            setting=name,
            texts=[text for text, _ in settings[name]],
            scores=scores,
            means=means_over_seeds(scores),
        )
        for name, scores in by_setting.items()
    ]


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
    """NCR over seeds, on the texts that the setting and both models alone have.

    A setting whose copying prompts failed would else be held against texts that it does not have.
    nan where the three have no prompt and seed in common.
    """
    common = [key for key in setting if key in risky and key in safe]
    num_all = len(setting.keys() | risky.keys() | safe.keys())
    if not common:
        return NcrStatistics(math.nan, math.nan, 0, 0, 0, num_all)
    means = [seed_means({key: one[key] for key in common}) for one in (setting, risky, safe)]
    ncr = ncr_over_seeds(means[0], risky=means[1], safe=means[2])
    return ncr._replace(num_texts=len(common), num_all_texts=num_all)


def ncr_by_setting(
    results: Sequence[LiteralCopying], *, safe: str, risky: str
) -> dict[str, NcrStatistics]:
    """`paired_ncr` of each setting; {} where one of the models alone is not among them."""
    scores = {result.setting: result.scores for result in results}
    if safe not in scores or risky not in scores:
        return {}
    return {
        name: paired_ncr(of_setting, risky=scores[risky], safe=scores[safe])
        for name, of_setting in scores.items()
    }


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
    copying = literal_copying(texts, progress=progress)
    ncr = ncr_by_setting(copying, safe=safe, risky=risky)
    scores = {result.setting: result.scores for result in copying}
    alone = {"safe": scores.get(safe, {}), "risky": scores.get(risky, {})}
    return {
        "schema": "anchored-measure/1",
        "measure": "copying",
        "metric_set": METRIC_SET,
        **metric_packages(),
        "beside": beside,
        "settings": [
            {
                "setting": result.setting,
                "num_texts": len(result.texts),
                **{name: value._asdict() for name, value in result.means.items()},
                "ncr": ncr[result.setting]._asdict() if ncr else None,
                **distribution(list(result.scores.values())),
                **extraction(result.scores),
                "difference": paired_difference(result.scores, scores[beside], **alone)
                if beside is not None
                else None,
            }
            for result in copying
        ],
        "rows": [row for result in copying for row in result.rows()],
    }


def distribution(scores: Sequence[CopyingScore]) -> dict[str, Any]:
    """Shares of texts with long copied spans, and quantiles of each metric, as JSON values.

    A quantile is the smallest value that at least this share of texts does not exceed. Spans end
    where the word metrics stop reading: at `MAX_WORDS`.
    Raises: ValueError if there are no scores.
    """
    if not scores:
        raise ValueError("a distribution needs at least one score, got none")
    longest = np.array([score.word_lcs for score in scores])
    quantiles = {
        name: np.quantile(
            [float(getattr(score, name)) for score in scores], QUANTILES, method="inverted_cdf"
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
    longest = [[scores[key].word_lcs for key in keys] for keys in by_prompt.values()]
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
        _prompt_means(one, prompts) for one in (setting, beside, risky, safe)
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


def _prompt_means(scores: Scores, prompts: Mapping[str, Sequence[tuple[str, int]]]) -> Array:
    """(P, M): the metrics of each prompt's texts, means over seeds."""
    summaries = [copying_summary([scores[key] for key in keys]) for keys in prompts.values()]
    return np.array([[summary[name] for name in METRICS] for summary in summaries])
