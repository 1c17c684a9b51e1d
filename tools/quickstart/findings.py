"""The findings of a quickstart, each a claim that its results could have refuted."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anchored.eval.copying.ncr import ncr_scope
from anchored.eval.experiments.summary import Row
from anchored.eval.quality.bits_per_byte import Utility
from anchored.eval.statistics import mean_of

from .questions import FACTS, TASK

ACCURACY = f"accuracy/{TASK}"

NOISE = 2.0
"""Standard errors within which two bits-per-byte figures count as equal."""
PROTECTED, CLOSED = 0.95, 0.8
"""NCR and the share of the gap in accuracy that one budget reaches together, if there is one."""
PROVED = 6.0
"""Powers of ten between the bounds of two budgets, geometric means over the works."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A claim, whether it holds in this run, and the figures behind it."""

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
    """The claims of the method, checked on the rows of `summarize` in the order p_s, ascending k,
    p_r.

    facts: bits on the held-out set FACTS, by setting. shows_effects: the preset's. Without it only
    the bounds are judged, which hold for any models.
    """
    safe, *settings, risky = rows
    anchored = [row for row in settings if row["k"] is not None]
    others = [row for row in settings if row["k"] is None]
    strictest, loosest = anchored[0], anchored[-1]
    original, recited = (mean_of(row["word_lcs"]) for row in (safe, risky))
    unknown, known = (row[ACCURACY] for row in (safe, risky))
    best = max(anchored, key=lambda row: (mean_of(row["ncr"]) >= PROTECTED, row[ACCURACY]))
    closed = (best[ACCURACY] - unknown) / (known - unknown) if known > unknown else 0.0
    margin, where = _least_margin([row["setting"] for row in (safe, *anchored)], facts)
    effects = [
        Finding(
            claim="the risky model recites at least 20 words in a row, the safe one at most 3",
            holds=recited >= 20 and original <= 3,
            figures=f"{recited:.1f} and {original:.1f} words on average",
        ),
        Finding(
            claim="the risky model knows the facts (0.8 of four answers), the safe one does not",
            holds=known >= 0.8 and unknown <= 0.5,
            figures=f"{known:.2f} against {unknown:.2f} right",
        ),
        Finding(
            claim=f"the smallest budget removes the copying (NCR at least {PROTECTED})",
            holds=mean_of(strictest["ncr"]) >= PROTECTED,
            figures=f"NCR {_ncr(strictest)} at {strictest['setting']}",
        ),
        Finding(
            claim="the largest budget lets it through (NCR at most 0.5)",
            holds=mean_of(loosest["ncr"]) <= 0.5,
            figures=f"NCR {_ncr(loosest)} at {loosest['setting']}",
        ),
        Finding(
            claim=f"one budget has an NCR of {PROTECTED} and {CLOSED:.0%} of the gap in accuracy",
            holds=mean_of(best["ncr"]) >= PROTECTED and closed >= CLOSED,
            figures=f"{best['setting']}: NCR {_ncr(best)}, {best[ACCURACY]:.2f} right, "
            f"{closed:.0%} closed",
        ),
        Finding(
            claim=f"bits per byte of {FACTS} improve with every larger budget (within 2 s.e.)",
            holds=margin >= 0,
            figures=f"least margin {margin:.4f} ({where})",
        ),
        _proved_more(anchored, others),
    ]
    if not shows_effects:
        effects = [replace(finding, holds=None) for finding in effects]
    bounds = Finding(
        claim="every certified ledger satisfies its bound",
        holds=all(row["is_within_bounds"] for row in rows),
        figures="sum of spends <= bound in float64, without tolerance",
    )
    return [*effects, bounds]


def _proved_more(anchored: Sequence[Row], others: Sequence[Row]) -> Finding:
    """The two budgets, of KL and of the Rényi order, that show best what the order proves."""

    def gain(pair: tuple[Row, Row]) -> tuple[bool, float]:
        kl, renyi = pair
        is_as_good = renyi[ACCURACY] >= kl[ACCURACY]
        return is_as_good, kl["log10_recited"] - renyi["log10_recited"]

    best = max(itertools.product(anchored, others), key=gain)
    figures = (
        f"{row['setting']}: {row[ACCURACY]:.2f} right, 1e{row['log10_recited']:.0f}" for row in best
    )
    return Finding(
        claim="at no less accuracy, a budget of Rényi order bounds recitals a million times lower",
        holds=gain(best) >= (True, PROVED),
        figures="; ".join(figures),
    )


def _least_margin(ascending: list[str], facts: Mapping[str, Utility]) -> tuple[float, str]:
    """The least by which a larger budget beats the noise of the paired difference, and where."""
    margins = {}
    for small, large in itertools.pairwise(ascending):
        gain, error = facts[large].gain_over(facts[small])
        margins[f"{small} to {large}"] = gain + NOISE * error
    return min((margin, where) for where, margin in margins.items())


def _ncr(row: Row) -> str:
    return f"{mean_of(row['ncr']):.3f}{ncr_scope(row['ncr'])}"
