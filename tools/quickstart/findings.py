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
    effects = [
        _memorised(safe, risky),
        _utility_to_win(safe, risky),
        _strict_protects(anchored[0]),
        _loose_copies(anchored[-1]),
        _trade_off(recommended(summaries)),
        _monotone([safe, *anchored]),
    ]
    if not shows_effects:
        effects = [replace(finding, holds=None) for finding in effects]
    return [*effects, _bounds_hold(summaries)]


def _memorised(safe: SettingSummary, risky: SettingSummary) -> Finding:
    ours, theirs = safe.copying["word_lcs"].mean, risky.copying["word_lcs"].mean
    return Finding(
        claim="the risky model recites (word LCS at least 5x the safe model's)",
        holds=theirs >= 5 * ours,
        figures=f"{theirs:.1f} against {ours:.1f} words",
    )


def _utility_to_win(safe: SettingSummary, risky: SettingSummary) -> Finding:
    gain, error = risky.utility[EXTRA].gain_over(safe.utility[EXTRA])
    return Finding(
        claim=f"the risky model predicts held-out {EXTRA} better",
        holds=gain > NOISE * error,
        figures=f"{gain:.3f} bits per byte saved (s.e. {error:.3f})",
    )


def _strict_protects(strictest: SettingSummary) -> Finding:
    return Finding(
        claim="the smallest budget removes the copying (NCR at least 0.95)",
        holds=strictest.ncr.mean >= 0.95,
        figures=f"NCR {_ncr(strictest)} at {strictest.setting.name}",
    )


def _loose_copies(loosest: SettingSummary) -> Finding:
    return Finding(
        claim="the largest budget lets it through (NCR at most 0.5)",
        holds=loosest.ncr.mean <= 0.5,
        figures=f"NCR {_ncr(loosest)} at {loosest.setting.name}",
    )


def _trade_off(best: SettingSummary) -> Finding:
    return Finding(
        claim="a budget in between protects (NCR >= 0.75) and closes 30 % of the utility gap",
        holds=is_high_protection(best.ncr.mean) and best.gap_closed >= 0.3,
        figures=f"{best.setting.name}: NCR {_ncr(best)}, {best.gap_closed:.0%} closed",
    )


def _monotone(ascending: list[SettingSummary]) -> Finding:
    """A larger budget is never worse by more than the noise of the paired difference."""
    worst, where = float("inf"), ""
    for name in ascending[0].utility:
        for small, large in itertools.pairwise(ascending):
            gain, error = large.utility[name].gain_over(small.utility[name])
            margin = gain + NOISE * error
            if margin < worst:
                worst, where = margin, f"{name}, {small.setting.name} to {large.setting.name}"
    return Finding(
        claim="bits per byte improve with every larger budget (within 2 standard errors)",
        holds=worst >= 0,
        figures=f"least margin {worst:.4f} ({where})",
    )


def _bounds_hold(summaries: list[SettingSummary]) -> Finding:
    return Finding(
        claim="every certified ledger satisfies its bound",
        holds=all(summary.is_within_bounds for summary in summaries),
        figures="sum of spends <= bound in float64, without tolerance",
    )


def _ncr(summary: SettingSummary) -> str:
    return f"{summary.ncr.mean:.3f}{summary.ncr.scope}"
