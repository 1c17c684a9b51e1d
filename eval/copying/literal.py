"""What recorded texts copy of their references: means over seeds, NCR, and the distribution.

A mean hides the few generations that copy much: quantiles and shares of long spans show them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from tqdm import tqdm

from ..recorded_texts import RecordedText, grouped
from ..statistics import SeedStatistics, over_seeds
from .metrics import METRICS, CopyingConfig, CopyingScore, copying_scores, copying_summary
from .ncr import NcrStatistics, ncr_over_seeds

QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)
LONG_SPANS: Final = (6, 20, 50)
"""Words that a copied span may exceed."""
MEASURED: Final = (
    *("rouge1_f1", "rougeL_f1", "word_lcs", "char_lcs", "word_acs", "minhash", "jaccard"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LiteralCopying:
    """What the texts of one setting copied."""

    setting: str
    texts: Sequence[RecordedText]
    scores: Sequence[CopyingScore]
    """Of each text."""
    means: dict[str, SeedStatistics]
    """By the names in `METRICS`, over seeds."""
    by_seed: Sequence[dict[str, float]]
    """The means of each seed, in ascending order."""

    def rows(self) -> list[dict[str, object]]:
        """A row for each text, for a results file."""
        pairs = zip(self.texts, self.scores, strict=True)
        return [{**text.key, **score.as_row()} for text, score in pairs]


def literal_copying(
    texts: Sequence[RecordedText], config: CopyingConfig | None = None, *, progress: bool = False
) -> list[LiteralCopying]:
    """The six metrics of every text against its reference, by setting.

    Warns as `copying_scores` does. Raises: ValueError for a text without a reference.
    """
    for text in texts:
        if text.reference is None:
            raise ValueError(f"{text.key} has no reference: give a file of prompts that have them")
    pairs = tqdm(
        [(text.text, text.reference or "") for text in texts], "copying", disable=not progress
    )
    scores = copying_scores(pairs, config)
    settings = grouped(zip(texts, scores, strict=True), lambda pair: pair[0].setting)
    return [_of_setting(name, pairs, config) for name, pairs in settings.items()]


def ncr_by_setting(
    results: Sequence[LiteralCopying], *, safe: str, risky: str
) -> dict[str, NcrStatistics]:
    """NCR over seeds of each setting, where the settings of both models alone are among them.

    {} where one of them is missing. Raises: ValueError if the settings have different seeds.
    """
    by_seed = {result.setting: result.by_seed for result in results}
    if safe not in by_seed or risky not in by_seed:
        return {}
    return {
        name: ncr_over_seeds(means, risky=by_seed[risky], safe=by_seed[safe])
        for name, means in by_seed.items()
    }


def share_above(scores: Sequence[CopyingScore], num_words: int) -> float:
    """The share of texts whose longest copied span has more than `num_words` words.

    Spans end where the word metrics stop reading: at 100 words unless `CopyingConfig` says
    otherwise. Raises: ValueError if there are no scores.
    """
    _check(scores)
    return sum(score.word_lcs > num_words for score in scores) / len(scores)


def copying_quantiles(scores: Sequence[CopyingScore]) -> dict[str, dict[float, float]]:
    """By metric of one text: the values at `QUANTILES`, each that of some text.

    A quantile is the smallest value that at least this share of texts does not exceed.
    Raises: ValueError if there are no scores.
    """
    _check(scores)
    values = {name: [float(getattr(score, name)) for score in scores] for name in MEASURED}
    found = {
        name: np.quantile(own, QUANTILES, method="inverted_cdf").tolist()
        for name, own in values.items()
    }
    return {name: dict(zip(QUANTILES, own, strict=True)) for name, own in found.items()}


def distribution(scores: Sequence[CopyingScore]) -> dict[str, Any]:
    """Shares of long spans and quantiles, as JSON values."""
    return {
        "share_above": {str(number): share_above(scores, number) for number in LONG_SPANS},
        "quantiles": {
            name: {str(quantile): value for quantile, value in own.items()}
            for name, own in copying_quantiles(scores).items()
        },
    }


def _of_setting(
    name: str,
    pairs: Sequence[tuple[RecordedText, CopyingScore]],
    config: CopyingConfig | None,
) -> LiteralCopying:
    by_seed = grouped(pairs, lambda pair: pair[0].seed)
    means = [
        copying_summary([score for _, score in by_seed[seed]], config) for seed in sorted(by_seed)
    ]
    return LiteralCopying(
        setting=name,
        texts=[text for text, _ in pairs],
        scores=[score for _, score in pairs],
        means={metric: over_seeds([mean[metric] for mean in means]) for metric in METRICS},
        by_seed=means,
    )


def _check(scores: Sequence[CopyingScore]) -> None:
    if not scores:
        raise ValueError("a distribution needs at least one score, got none")
