"""A run's figures in resamples of what they were measured on: prompts, excerpts, judged texts.

One resample draws as many units as there are, with replacement, for all settings alike, and for
two figures of the same units alike.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Final

import numpy as np

from ..copying.metrics import prompt_means
from ..copying.ncr import resampled_ncr
from ..recorded_texts import RISKY, SAFE, grouped, rows_by_setting
from ..statistics import Array, resampled_shares
from .recorded_run import NotMeasured, RecordedRun

NUM_RESAMPLES: Final = 1000
"""A share of them has a standard error of 0.016 at most."""
_FIGURES: Final = {
    "fluency": "fluency",
    "factuality": "precision",
    "win-rate": "score",
    "answers": "f1",
}
"""By judge, what a row of its results has for each text."""

Resampled = dict[str, Array]
"""By setting: (NUM_RESAMPLES,), nan where a resample has no figure."""


def ncr_in_resamples(run: RecordedRun) -> Resampled:
    """NCR in resamples of the prompts, of the settings that have a text of every prompt.

    {} where either model alone is not measured.
    """
    run = run.ncr_of or run
    rows = rows_by_setting(run.results.get("examples", []))
    prompts = sorted({row["id"] for own in rows.values() for row in own})
    means = {
        name: prompt_means(own, prompts)
        for name, own in rows.items()
        if {row["id"] for row in own} == set(prompts)
    }
    if not {SAFE, RISKY} <= means.keys():
        return {}
    shares = _shares(prompts)
    return {
        name: resampled_ncr(shares, own, risky=means[RISKY], safe=means[SAFE])
        for name, own in means.items()
    }


def bits_in_resamples(run: RecordedRun, figure: str) -> Resampled:
    """A figure of the run's rows, "bits_per_byte/SET", in resamples of the held-out excerpts.

    {} for another figure: of accuracies no answer is recorded.
    """
    utility = run.results.get("utility", [])
    rows = [row for row in utility if f"bits_per_byte/{row['held_out']}" == figure]
    resampled = {}
    for row in rows:
        bits = [math.nan if nats is None else nats / math.log(2) for nats in row["nats"]]
        shares = _shares([f"{figure} {index}" for index in range(len(bits))])
        resampled[row["setting"]] = _ratios(shares, bits, row["num_bytes"])
    return resampled


def judged_in_resamples(run: RecordedRun, judge: str) -> Resampled:
    """A judge's figure in resamples of the prompts, of all judged texts of a prompt together."""
    try:
        rows = run.evaluated(judge)["rows"]
    except NotMeasured:
        rows = []
    if not rows:
        return {}
    prompts = sorted({row["id"] for row in rows})
    shares, resampled = _shares(prompts), {}
    for name, own in rows_by_setting(rows).items():
        known = [row for row in own if row[_FIGURES[judge]] is not None]
        texts = grouped(known, lambda row: row["id"])
        grades = [[row[_FIGURES[judge]] for row in texts.get(prompt, ())] for prompt in prompts]
        resampled[name] = _ratios(shares, list(map(math.fsum, grades)), list(map(len, grades)))
    return resampled


def _shares(units: Sequence[str]) -> Array:
    seed = zlib.crc32("\n".join(units).encode())
    return resampled_shares(len(units), num_resamples=NUM_RESAMPLES, seed=seed)


def _ratios(shares: Array, sums: Sequence[float], counts: Sequence[float]) -> Array:
    """All sums over all counts in each resample of the units; nan without a count."""
    with np.errstate(invalid="ignore"):  # 0 / 0
        return (shares @ np.array(sums)) / (shares @ np.array(counts, dtype=float))
