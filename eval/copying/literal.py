"""Literal copying of recorded texts: means over seeds, NCR, and the distribution.

A mean hides the few generations that copy much: quantiles and shares of long spans show them.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any, Final, TypeVar

import numpy as np
from tqdm import tqdm

from ...durable_files import text_sha256
from ..recorded_texts import RISKY, SAFE, RecordedText, grouped
from ..statistics import (
    Array,
    SeedStatistics,
    bootstrap_interval,
    mean_of,
    mean_of_largest,
    over_seeds,
    resampled_shares,
)
from .metrics import (
    METRIC_SET,
    METRICS,
    Row,
    copying_score,
    copying_summary,
    installed_in,
    metric_packages,
    prompt_means,
)

HIGH_PROTECTION: Final = 0.75
QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
LONG_SPANS: Final = (6, 20, 50)
"""Words that a copied span may exceed."""
MEASURED: Final = (
    *("rouge1_f1", "rougeL_f1", "word_lcs", "char_lcs", "word_acs", "word_prefix"),
    *("minhash", "jaccard"),
)
"""Figures of one text whose quantiles are recorded."""
NUM_SAMPLES: Final = 20
"""Texts of a prompt that a user who wants the work may draw; fewer if a run has fewer."""
NUM_RESAMPLES: Final = 2000
"""Resamples of the prompts for differences: ends of an interval move by 0.05 of its width."""
CONFIDENCE: Final = 0.95
MIN_WIDTH: Final = 1e-9
"""Least width of an interval: below it (rounding of sums) all resamples agree, and say nothing of
prompts that were not measured."""
Scores = Mapping[tuple[str, int], Row]
"""Rows of one setting's texts, by prompt and seed."""
Means = Mapping[str, float]
"""Means over a data set by the names in `METRICS`, not rounded; other keys are ignored."""
Setting = TypeVar("Setting", bound=Mapping[str, Any])
"""A row of results of one setting."""


class NcrStatistics(SeedStatistics):
    """NCR of one setting: statistics over seeds, each the mean of `num_metrics`."""

    num_metrics: int
    """Metrics with a gap to close, in the seed that has the fewest."""
    num_texts: int
    """Texts that the setting and both models alone have, by prompt and seed."""
    num_all_texts: int
    """Texts that one of the three has."""


def ncr_scope(figure: Mapping[str, Any]) -> str:
    """Note after a shown NCR: " [4 of 6]" metrics, " {30 of 40}" texts; "" for all of both. figure:
    `NcrStatistics`; statistics of other figures have no note."""
    num_metrics = figure.get("num_metrics", len(METRICS))
    has_all_metrics = num_metrics == len(METRICS) or not figure.get("num_seeds", 1)
    scope = "" if has_all_metrics else f" [{num_metrics} of {len(METRICS)}]"
    num_texts, num_all = figure.get("num_texts"), figure.get("num_all_texts")
    return scope if num_texts == num_all else scope + f" {{{num_texts} of {num_all}}}"


def copying_reduction(setting: Means, *, risky: Means, safe: Means) -> dict[str, float]:
    """(m_r - m) / (m_r - m_s) of each metric m with a gap: NCR is their plain mean. It is 0 for the
    risky model, 1 for the safe one, and not clipped to [0, 1]. A metric with m_r <= m_s has no
    copying to reduce, and is left out. All three are of the same prompts and seed. Source: He et
    al., "Anchored Decoding", section "Evaluation metrics"."""
    return {
        name: (risky[name] - setting[name]) / gap
        for name in METRICS
        if (gap := risky[name] - safe[name]) > 0
    }


def resampled_ncr(shares: Array, setting: Array, *, risky: Array, safe: Array) -> Array:
    """NCR in resamples of P prompts, as `copying_reduction` has it of their means. shares: (R, P),
    as `resampled_shares` draws them. setting, risky, safe: (P, M), each prompt's metrics in the
    order of `METRICS`. Returns: (R,), nan where nothing has a gap to close."""
    mean, most, least = shares @ setting, shares @ risky, shares @ safe
    has_gap = most > least
    gaps = np.where(has_gap, most - least, 1.0)
    reductions = np.where(has_gap, (most - mean) / gaps, 0.0).sum(1)
    num_metrics = has_gap.sum(1)
    return np.where(num_metrics > 0, reductions / np.maximum(num_metrics, 1), math.nan)


def high_protection(
    rows: Iterable[Setting], *, utility: str = "factuality"
) -> dict[str, Setting | None]:
    """The best row of each method among those with high protection; None without one. rows: one per
    setting, with its "method", its "ncr" (not rounded) and the figure named `utility`, higher is
    better, both numbers or statistics; other entries are the caller's. Of equal rows the first is
    taken; one without an NCR is not protected, one without a utility is taken if there is no other.
    Source: He et al., "Anchored Decoding", table "High-protection operating point"."""

    def figure(row: Setting) -> float:
        return or_least(mean_of(row[utility]))

    return {
        method: max(
            (row for row in same if mean_of(row["ncr"]) >= HIGH_PROTECTION),
            key=figure,
            default=None,
        )
        for method, same in grouped(rows, lambda row: str(row["method"])).items()
    }


def or_least(value: float) -> float:
    """The value; -inf for nan."""
    return -math.inf if math.isnan(value) else value


def copying_rows(
    texts: Sequence[RecordedText], *, known: Iterable[Row] = (), progress: bool = False
) -> list[dict[str, Any]]:
    """The six metrics of every text against its reference, a row each, for a results file. known:
    recorded rows; a text that these metrics have scored against this reference is not scored again.
    Raises: ValueError for a text without a reference."""
    metrics = METRIC_SET, json.dumps(metric_packages())
    rows = {row["scored"]: row for row in known if "scored" in row}
    texts_by_key: list[tuple[str, RecordedText]] = []
    for text in texts:
        if not text.reference:
            raise ValueError(f"{text.key} has no reference: give a file of prompts that have them")
        texts_by_key.append((text_sha256(*metrics, text.text, text.reference), text))
    missing = {key: text for key, text in texts_by_key if key not in rows}
    for key, text in tqdm(missing.items(), "copying", disable=not (progress and missing)):
        rows[key] = {**copying_score(text.text, text.reference or ""), "scored": key}
    return [{**text.key, **rows[key], **text.key} for key, text in texts_by_key]


def scores_by_setting(rows: Iterable[Row]) -> Mapping[str, Scores]:
    """The rows of each setting, in the order of their first ones."""
    of_settings = grouped(rows, lambda row: str(row["setting"]))
    return {
        name: {(row["id"], row["seed"]): row for row in same} for name, same in of_settings.items()
    }


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
    """NCR of each seed by itself, over seeds, on the texts that the setting and both models have. A
    setting whose copying prompts failed would else be compared with texts that it does not have.
    Not defined if the three have no prompt and seed in common."""
    common = [key for key in setting if key in risky and key in safe]
    num_all = len(setting.keys() | risky.keys() | safe.keys())
    if not common:
        nothing: SeedStatistics = {"mean": None, "std": None, "num_seeds": 0}
        return {**nothing, "num_metrics": 0, "num_texts": 0, "num_all_texts": num_all}
    means = [seed_means({key: one[key] for key in common}) for one in (setting, risky, safe)]
    reductions = [
        copying_reduction(mean, risky=most, safe=least)
        for mean, most, least in zip(*means, strict=True)
    ]
    return {
        **over_seeds([fmean(each.values()) if each else math.nan for each in reductions]),
        "num_metrics": min(map(len, reductions)),
        "num_texts": len(common),
        "num_all_texts": num_all,
    }


def copying_results(
    texts: Sequence[RecordedText],
    *,
    safe: str = SAFE,
    risky: str = RISKY,
    beside: str | None = None,
    known: Iterable[Row] = (),
    progress: bool = False,
) -> dict[str, Any]:
    """Everything about literal copying, for a results file: settings, and a row for each text.
    beside: the setting with which `paired_difference` compares every other one; None for none.
    known: as for `copying_rows`."""
    settings = dict.fromkeys(text.setting for text in texts)
    missing = [name for name in (beside, safe, risky) if name not in settings]
    if beside is not None and missing:
        raise ValueError(f"there are no texts of {missing[0]!r}, only of {', '.join(settings)}")
    rows = copying_rows(texts, known=known, progress=progress)
    scores = scores_by_setting(rows)
    alone = {"safe": scores.get(safe, {}), "risky": scores.get(risky, {})}
    return {
        "schema": "anchored-measure/1",
        "measure": "copying",
        "metric_set": METRIC_SET,
        **metric_packages(),
        "beside": beside,
        "settings": [
            {
                "setting": name,
                "num_texts": len(same),
                **means_over_seeds(same),
                "ncr": paired_ncr(same, **alone) if all(alone.values()) else None,
                **distribution(list(same.values())),
                **extraction(same),
                "difference": beside and paired_difference(same, scores[beside], **alone),
            }
            for name, same in scores.items()
        ],
        "rows": rows,
    }


def distribution(scores: Sequence[Row]) -> dict[str, Any]:
    """Shares of texts with long copied spans, and quantiles of each metric, as JSON values. A
    quantile is the smallest value that at least this share of texts does not exceed. Spans end
    where the word metrics stop reading: at `MAX_WORDS`."""
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
    """The longest copies in several texts of a prompt, as a user gets who draws them all. Means
    over prompts, for `NUM_SAMPLES` texts or as many as every prompt has: the chance that one of
    them has a copied span of more words than `LONG_SPANS`, and the longest span of all."""
    by_prompt = grouped(scores, lambda key: key[0])
    longest = [[scores[key]["word_lcs"] for key in keys] for keys in by_prompt.values()]
    count = min(NUM_SAMPLES, *map(len, longest))

    def mean(values: Sequence[Sequence[float]]) -> float:
        return math.fsum(mean_of_largest(each, count) for each in values) / len(values)

    return {
        "num_samples": count,
        "chance_above": {
            str(n): mean([[float(length > n) for length in lengths] for lengths in longest])
            for n in LONG_SPANS
        },
        "longest_of_samples": mean(longest),
    }


def paired_difference(
    setting: Scores, beside: Scores, *, risky: Scores, safe: Scores
) -> dict[str, Any] | None:
    """The NCR of a setting less that of another on the same prompts and seeds, with an interval:
    differences of prompts fall out. Over the texts that all four have; None without one, and if the
    risky model copies no more than the safe one. The ends are infinite if nothing varies: of one
    prompt, or if both settings have one NCR by definition."""
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
    if high - low < MIN_WIDTH:
        low, high = -math.inf, math.inf
    return {"ncr": value, "low": low, "high": high, "num_prompts": count}
