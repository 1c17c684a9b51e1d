"""What the results say, each as a claim that they could have refuted."""

import itertools
from dataclasses import dataclass, replace

from anchored.eval.copying.ncr import is_high_protection
from anchored.eval.experiments.summary import SettingSummary, recommended

from .corpus import EXTRA

NOISE = 2.0
"""Standard errors within which two bits-per-byte figures count as equal."""


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
    strictest, loosest, best = anchored[0], anchored[-1], recommended(summaries)
    original, recited = (each.copying["word_lcs"].mean for each in (safe, risky))
    gain, error = risky.utility[EXTRA].gain_over(safe.utility[EXTRA])
    margin, where = _least_margin([safe, *anchored])
    effects = [
        Finding(
            claim="the risky model recites (word LCS at least 5x the safe model's)",
            holds=recited >= 5 * original,
            figures=f"{recited:.1f} against {original:.1f} words",
        ),
        Finding(
            claim=f"the risky model predicts held-out {EXTRA} better",
            holds=gain > NOISE * error,
            figures=f"{gain:.3f} bits per byte saved (s.e. {error:.3f})",
        ),
        Finding(
            claim="the smallest budget removes the copying (NCR at least 0.95)",
            holds=strictest.ncr.mean >= 0.95,
            figures=f"NCR {_ncr(strictest)} at {strictest.setting.name}",
        ),
        Finding(
            claim="the largest budget lets it through (NCR at most 0.5)",
            holds=loosest.ncr.mean <= 0.5,
            figures=f"NCR {_ncr(loosest)} at {loosest.setting.name}",
        ),
        Finding(
            claim="a budget in between protects (NCR >= 0.75) and closes 30 % of the utility gap",
            holds=is_high_protection(best.ncr.mean) and best.gap_closed >= 0.3,
            figures=f"{best.setting.name}: NCR {_ncr(best)}, {best.gap_closed:.0%} closed",
        ),
        Finding(
            claim="bits per byte improve with every larger budget (within 2 standard errors)",
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
    """By how much the next larger budget beats the noise of the paired difference, and where."""
    margins = {}
    for small, large in itertools.pairwise(ascending):
        for name in small.utility:
            gain, error = large.utility[name].gain_over(small.utility[name])
            where = f"{name}, {small.setting.name} to {large.setting.name}"
            margins[where] = gain + NOISE * error
    return min((margin, where) for where, margin in margins.items())


def _ncr(summary: SettingSummary) -> str:
    return f"{summary.ncr.mean:.3f}{summary.ncr.scope}"
