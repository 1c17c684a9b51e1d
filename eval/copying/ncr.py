"""Normalized copying reduction: how much of the copying gap between two models a setting closes."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import numpy as np

from ..statistics import Array, SeedStatistics, mean_of
from .metrics import METRICS

HIGH_PROTECTION: Final = 0.75

CopyingMeans = Mapping[str, float]
Row = TypeVar("Row", bound=Mapping[str, Any])


class NcrStatistics(SeedStatistics):
    """NCR of one setting: statistics over seeds, each the mean of `num_metrics`."""

    num_metrics: int
    """Metrics with a gap to close, in the seed that has the fewest."""
    num_texts: int
    """Texts that the setting and both models alone have, by prompt and seed."""
    num_all_texts: int
    """Texts that one of the three has."""


def ncr_scope(figure: Mapping[str, Any]) -> str:
    """Note after a shown NCR: " [4 of 6]" metrics, " {30 of 40}" texts; "" for all of both.

    figure: `NcrStatistics`; statistics of other figures have no note.
    """
    num_metrics = figure.get("num_metrics", len(METRICS))
    has_all_metrics = num_metrics == len(METRICS) or not figure.get("num_seeds", 1)
    scope = "" if has_all_metrics else f" [{num_metrics} of {len(METRICS)}]"
    num_texts, num_all = figure.get("num_texts"), figure.get("num_all_texts")
    return scope if num_texts == num_all else scope + f" {{{num_texts} of {num_all}}}"


def copying_reduction(
    setting: CopyingMeans, *, risky: CopyingMeans, safe: CopyingMeans
) -> dict[str, float]:
    """(m_r - m) / (m_r - m_s) of each metric m with a gap: NCR is their plain mean.

    It is 0 for the risky model, 1 for the safe one, and not clipped to [0, 1]. A metric with
    m_r <= m_s has no copying to reduce, and is left out.
    setting, risky, safe: data set means by the names in `METRICS`, unrounded, of the same prompts
    and seed; other keys are ignored.
    Source: He et al., "Anchored Decoding", section "Evaluation metrics".
    """
    return {
        name: (risky[name] - setting[name]) / gap
        for name in METRICS
        if (gap := risky[name] - safe[name]) > 0
    }


def resampled_ncr(shares: Array, setting: Array, *, risky: Array, safe: Array) -> Array:
    """NCR in resamples of P prompts, as `copying_reduction` has it of their means.

    shares: (R, P), as `resampled_shares` draws them. setting, risky, safe: (P, M), each prompt's
    metrics in the order of `METRICS`. Returns: (R,), nan where nothing has a gap to close.
    """
    mean, most, least = shares @ setting, shares @ risky, shares @ safe
    has_gap = most > least
    gaps = np.where(has_gap, most - least, 1.0)
    reductions = np.where(has_gap, (most - mean) / gaps, 0.0).sum(1)
    num_metrics = has_gap.sum(1)
    return np.where(num_metrics > 0, reductions / np.maximum(num_metrics, 1), math.nan)


def high_protection(rows: Iterable[Row], *, utility: str = "factuality") -> dict[str, Row | None]:
    """The best row of each method among those with high protection; None without one.

    rows: one per setting, with its "method", its "ncr" (a mean over metrics and seeds, not rounded)
    and the figure named `utility`, higher is better, both numbers or statistics; other entries are
    the caller's: the paper reports the fluency of the setting with the best factuality. Of equal
    rows the first is taken; one whose NCR is None or nan is not protected, one whose utility is
    None or nan is taken if there is no other.
    Returns: by method, in the order of their first rows.
    Source: He et al., "Anchored Decoding", table "High-protection operating point".
    """
    best: dict[str, Row | None] = {}
    for row in rows:
        chosen = best.setdefault(row["method"], None)
        is_protected = mean_of(row["ncr"]) >= HIGH_PROTECTION
        if is_protected and (
            chosen is None or or_least(mean_of(row[utility])) > or_least(mean_of(chosen[utility]))
        ):
            best[row["method"]] = row
    return best


def or_least(value: float) -> float:
    """The value; -inf for nan."""
    return -math.inf if math.isnan(value) else value
