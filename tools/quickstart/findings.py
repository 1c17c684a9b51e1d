"""The findings of a quickstart, each a claim that its results could have refuted."""

import itertools
from dataclasses import dataclass, replace

from anchored.eval.experiments.summary import SettingSummary

from .questions import FACTS, TASK

NOISE = 2.0
"""Standard errors within which two bits-per-byte figures count as equal."""
PROTECTED, CLOSED = 0.95, 0.8
"""NCR and the share of the gap in accuracy that one budget reaches together, if there is one."""


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


def findings(summaries: list[SettingSummary], *, shows_effects: bool) -> list[Finding]:
    """The claims of the method, checked on summaries in the order p_s, ascending k, p_r.

    shows_effects: the preset's. Without it only the bounds are judged, which hold for any models.
    """
    safe, *anchored, risky = summaries
    strictest, loosest = anchored[0], anchored[-1]
    original, recited = (each.copying["word_lcs"].mean for each in (safe, risky))
    unknown, known = (each.accuracy[TASK] for each in (safe, risky))
    best = max(anchored, key=lambda each: (each.ncr.mean >= PROTECTED, each.accuracy[TASK]))
    closed = (best.accuracy[TASK] - unknown) / (known - unknown) if known > unknown else 0.0
    margin, where = _least_margin([safe, *anchored])
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
            holds=strictest.ncr.mean >= PROTECTED,
            figures=f"NCR {_ncr(strictest)} at {strictest.setting.name}",
        ),
        Finding(
            claim="the largest budget lets it through (NCR at most 0.5)",
            holds=loosest.ncr.mean <= 0.5,
            figures=f"NCR {_ncr(loosest)} at {loosest.setting.name}",
        ),
        Finding(
            claim=f"one budget has an NCR of {PROTECTED} and {CLOSED:.0%} of the gap in accuracy",
            holds=best.ncr.mean >= PROTECTED and closed >= CLOSED,
            figures=f"{best.setting.name}: NCR {_ncr(best)}, {best.accuracy[TASK]:.2f} right, "
            f"{closed:.0%} closed",
        ),
        Finding(
            claim=f"bits per byte of {FACTS} improve with every larger budget (within 2 s.e.)",
            holds=margin >= 0,
            figures=f"least margin {margin:.4f} ({where})",
        ),
    ]
    if not shows_effects:
        effects = [replace(finding, holds=None) for finding in effects]
    bounds = Finding(
        claim="every certified ledger satisfies its bound",
        holds=all(summary.is_within_bounds for summary in summaries),
        figures="sum of spends <= bound in float64, without tolerance",
    )
    return [*effects, bounds]


def _least_margin(ascending: list[SettingSummary]) -> tuple[float, str]:
    """The least by which a larger budget beats the noise of the paired difference, and where."""
    margins = {}
    for small, large in itertools.pairwise(ascending):
        gain, error = large.utility[FACTS].gain_over(small.utility[FACTS])
        margins[f"{small.setting.name} to {large.setting.name}"] = gain + NOISE * error
    return min((margin, where) for where, margin in margins.items())


def _ncr(summary: SettingSummary) -> str:
    return f"{summary.ncr.mean:.3f}{summary.ncr.scope}"
