"""One row a setting: copying over seeds, NCR, held-out bits per byte, spends."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...decode.rules.event_bound import event_bound
from ...decode.rules.rule import Rule
from ..copying.literal import means_over_seeds, paired_ncr, scores_by_setting
from ..copying.metrics import METRICS
from ..copying.ncr import HIGH_PROTECTION, NcrStatistics, or_least
from ..quality.bits_per_byte import Utility
from ..recorded_texts import RISKY, SAFE
from ..statistics import SeedStatistics, json_value, mean_if_known
from .experiment import Experiment, Setting
from .generations import failed_generations, read_generations

VERBATIM: Final = "verbatim"
"""Rows of what the safe model gives to the references."""
GOOD_ENOUGH: Final = 0.9
"""Share of the gap in utility that a recommended budget closes. On the quickstart's pair the last
tenth takes a bound four times as large, which excludes nothing any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingSummary:
    """What one setting copied, spent and was worth."""

    setting: Setting
    copying: dict[str, SeedStatistics]
    """As `means_over_seeds` has it; {} where no prompt has a reference."""
    ncr: NcrStatistics
    utility: dict[str, Utility]
    """By held-out set."""
    accuracy: dict[str, float]
    """By task of lm-eval; {} where none was asked."""
    gap_closed: float
    """Share of the gap in bits per byte between p_s and p_r on the extra set; nan without a gap or
    held-out texts, and where a text failed or costs infinitely many bits, as the rule cannot write
    it."""
    mean_spent: float | None
    mean_bound: float | None
    risky_token_share: float
    """Share of tokens where the safe model's draw was not kept; nan without texts."""
    is_within_bounds: bool
    """Every certified ledger satisfies its bound."""
    num_failed: int = 0
    """Generations that ended in an error; the other figures are of the rest."""
    recited: float | None = None
    """The largest probability that bounds left to texts that begin with their references, a mean
    over texts; None without a bound, and where it was not measured."""

    def as_row(self) -> dict[str, Any]:
        """The table's row: statistics over seeds, bits per byte by held-out set."""
        bits = {f"bits_per_byte/{name}": u.bits_per_byte for name, u in self.utility.items()}
        accuracy = {f"accuracy/{task}": share for task, share in self.accuracy.items()}
        return {
            "setting": self.setting.name,
            **dict.fromkeys(METRICS),
            **self.copying,
            "ncr": self.ncr,
            "recited": self.recited,
            **bits,
            **accuracy,
            "gap_closed": self.gap_closed,
            "spent": self.mean_spent,
            "bound": self.mean_bound,
            "risky_tokens": self.risky_token_share,
            "failed": self.num_failed,
        }

    def as_json(self) -> dict[str, Any]:
        """Plain values for results.json; what is not defined or infinite is None."""
        errors = {f"bits_per_byte_se/{n}": u.standard_error for n, u in self.utility.items()}
        row = {**self.as_row(), **errors, "k": self.setting.k}
        method = {"method": self.setting.method} if self.setting.method else {}
        return {**json_value(row), "is_within_bounds": self.is_within_bounds, **method}


def summarize(experiment: Experiment) -> list[SettingSummary]:
    """Summaries in the order of the settings."""
    measured = scores_by_setting(experiment.read_rows("copying"))
    scores = {setting.name: measured.get(setting.name, {}) for setting in experiment.settings}
    utility: dict[str, dict[str, Utility]] = {}
    for row in experiment.read_rows("utility"):
        of_setting = utility.setdefault(row["setting"], {})
        # What JSON cannot hold: infinitely many bits, or no figure where an excerpt failed.
        missing = math.nan if "error" in row else math.inf
        nats = [missing if each is None else each for each in row["nats"]]
        of_setting[row["held_out"]] = Utility(nats=nats, num_bytes=row["num_bytes"])
    accuracy: dict[str, dict[str, float]] = {}
    for row in experiment.read_rows("questions"):
        accuracy.setdefault(row["setting"], {})[row["task"]] = row["acc"]
    log_probs = {row["id"]: row["safe_log_prob"] for row in experiment.read_rows(VERBATIM)}
    bits = {name: sets[experiment.extra].bits_per_byte for name, sets in utility.items()}
    return [
        SettingSummary(
            setting=setting,
            copying=means_over_seeds(scores[setting.name]),
            ncr=paired_ncr(scores[setting.name], risky=scores[RISKY], safe=scores[SAFE]),
            utility=utility.get(setting.name, {}),
            accuracy=accuracy.get(setting.name, {}),
            gap_closed=_gap_closed(bits, setting.name),
            **_spends(experiment, setting, log_probs),
        )
        for setting in experiment.settings
    ]


def _gap_closed(bits: Mapping[str, float], name: str) -> float:
    """The share of the gap between both models that a setting closes, where there is one."""
    gap = bits[SAFE] - bits[RISKY] if bits else math.nan
    if not gap > 0 or not math.isfinite(bits[name]):
        return math.nan
    return (bits[SAFE] - bits[name]) / gap


def recommended(summaries: list[SettingSummary]) -> SettingSummary:
    """The smallest budget with NCR >= 0.75 that closes GOOD_ENOUGH of the gap in utility.

    Where none does, the one with NCR >= 0.75 that closes most of it; where none protects, the one
    that copies least. Measured copying says nothing of other prompts, the bound does: so the
    smallest that is good enough, not the largest that still looks safe.
    """
    anchored = [summary for summary in summaries if summary.setting.k is not None]
    protected = [summary for summary in anchored if summary.ncr.mean >= HIGH_PROTECTION]
    if not protected:
        return max(anchored, key=lambda summary: or_least(summary.ncr.mean))
    good = [summary for summary in protected if summary.gap_closed >= GOOD_ENOUGH]
    return good[0] if good else max(protected, key=lambda summary: or_least(summary.gap_closed))


def _spends(
    experiment: Experiment, setting: Setting, log_probs: Mapping[str, float]
) -> dict[str, Any]:
    rows = read_generations(experiment, setting)
    certified = [row for row in rows if row["certified"]]
    num_tokens = sum(row["num_tokens"] for row in rows)
    num_risky = sum(row["risky_tokens"] for row in rows)
    return {
        "mean_spent": mean_if_known(row["spent"] for row in rows),
        "mean_bound": mean_if_known(row["bound"] for row in rows),
        "risky_token_share": num_risky / num_tokens if num_tokens else math.nan,
        "is_within_bounds": all(row["is_within_bound"] for row in certified),
        "num_failed": len(failed_generations(experiment, setting)),
        "recited": mean_if_known(copy_probabilities(rows, log_probs, setting.rule)),
    }


def copy_probabilities(
    rows: Iterable[Mapping[str, Any]], log_probs: Mapping[str, float], rule: Rule
) -> list[float | None]:
    """The largest probability that each text's bound left to beginning with its reference; None
    where it has no bound, or its reference is not among the log-probabilities.

    rows: of `read_generations`. log_probs: log p_s of the references by id, nats, as VERBATIM has
    them.
    """
    divergence = rule.divergence or "kl"
    return [
        event_bound(row["bound"], log_probs[row["id"]], divergence=divergence)
        if row["certified"] and row["bound"] is not None and row["id"] in log_probs
        else None
        for row in rows
    ]
