"""The findings of a quickstart, each a claim that its results could have refuted."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anchored.eval.copying.literal import ncr_scope
from anchored.eval.experiments.measures import Row
from anchored.eval.quality.bits_per_byte import Utility
from anchored.eval.report.tables import at_most
from anchored.eval.statistics import mean_of

from .questions import FACTS, TASK

ACCURACY = f"accuracy/{TASK}"

NOISE = 2.0
"""Standard errors within which two bits-per-byte figures count as equal."""
PROTECTED, CLOSED = 0.95, 0.8
"""NCR and the share of the gap in accuracy that one budget reaches together, if there is one."""
USEFUL, PROVED = 0.85, 1e-30
"""The share of the questions that one budget answers, and the chance of reciting the worst work
that its bound stays below."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A claim, whether it holds in this run, and its figures."""

    claim: str
    holds: bool | None
    """None where the preset is too small to show it: its figures speak neither for nor against."""
    figures: str

    def __str__(self) -> str:
        if self.holds is None:
            return f"[ - ] {self.claim}: not shown by this preset ({self.figures})"
        return f"[{'yes' if self.holds else ' NO'}] {self.claim}: {self.figures}"


def findings(
    rows: Sequence[Row], facts: Mapping[str, Utility], *, shows_effects: bool
) -> list[Finding]:
    """The claims of the method, checked on the rows of `summarize` in the order p_s, ascending k
    of KL, other rules, p_r.

    facts: bits on the held-out set FACTS. shows_effects: without, only bounds are judged.
    """
    safe, *settings, risky = rows
    anchored = [row for row in settings if row["k"] is not None]
    least = min(settings, key=lambda row: mean_of(row["ncr"]))
    original, recited = (mean_of(row["word_lcs"]) for row in (safe, risky))
    low, high = (row[ACCURACY] for row in (safe, risky))
    best = max(settings, key=lambda row: (mean_of(row["ncr"]) >= PROTECTED, row[ACCURACY]))
    closed = (best[ACCURACY] - low) / (high - low) if high > low else 0.0
    margin, where = _least_margin([row["setting"] for row in (safe, *anchored)], facts)
    effects = [
        (
            "the risky model recites at least 20 words in a row, the safe one at most 3",
            recited >= 20 and original <= 3,
            f"{recited:.1f} and {original:.1f} words on average",
        ),
        (
            "the risky model knows the facts (0.8 of four answers), the safe one does not",
            high >= 0.8 and low <= 0.5,
            f"{high:.2f} against {low:.2f} right",
        ),
        (
            f"every budget removes the copying (NCR at least {PROTECTED})",
            all(mean_of(row["ncr"]) >= PROTECTED for row in settings),
            f"NCR {_ncr(least)} at {least['setting']}",
        ),
        (
            f"one budget has an NCR of {PROTECTED} and {CLOSED:.0%} of the gap in accuracy",
            mean_of(best["ncr"]) >= PROTECTED and closed >= CLOSED,
            f"{best['setting']}: NCR {_ncr(best)}, {best[ACCURACY]:.2f} right, {closed:.0%} closed",
        ),
        (
            f"bits per byte of {FACTS} improve with every larger KL budget (within 2 s.e.)",
            margin >= 0,
            f"least margin {margin:.4f} ({where})",
        ),
        _proved(settings),
    ]
    bounds = Finding(
        "every certified ledger satisfies its bound",
        all(row["is_within_bounds"] for row in rows),
        "sum of spends <= bound in float64, without tolerance",
    )
    return [*(Finding(c, holds if shows_effects else None, f) for c, holds, f in effects), bounds]


def _proved(settings: Sequence[Row]) -> tuple[str, bool, str]:
    """The finding on each rule's budget that proves most of the worst work, if one is useful."""
    useful = [row for row in settings if row[ACCURACY] >= USEFUL]
    best: dict[str, Row] = {}
    for row in sorted(useful or settings, key=lambda row: row["recited"]):
        best.setdefault(row.get("method", "Anchored"), row)
    texts = (
        f"{row['setting']}: {row[ACCURACY]:.2f} right, {at_most(row['recited'])}"
        for row in best.values()
    )
    chance = f"the worst work is recited with a chance below {PROVED:g}"
    holds = any(row["recited"] < PROVED for row in useful)
    return f"with at least {USEFUL:.0%} right, {chance}", holds, "; ".join(texts)


def _least_margin(ascending: list[str], facts: Mapping[str, Utility]) -> tuple[float, str]:
    """The least by which a larger budget beats the noise of the paired difference, and where."""
    margins = {}
    for small, large in itertools.pairwise(ascending):
        gain, error = facts[large].gain_over(facts[small])
        margins[f"{small} to {large}"] = gain + NOISE * error
    return min((margin, where) for where, margin in margins.items())


def _ncr(row: Row) -> str:
    return f"{mean_of(row['ncr']):.3f}{ncr_scope(row['ncr'])}"
