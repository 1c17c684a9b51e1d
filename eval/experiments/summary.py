"""One row a setting: copying over seeds, NCR, held-out bits per byte, spends."""

import math
from dataclasses import dataclass
from typing import Any, Final

from ...decode.rules.event_bound import event_bound
from ..copying.metrics import METRICS
from ..copying.ncr import NcrStatistics, is_high_protection, ncr_over_seeds, or_least
from ..quality.bits_per_byte import Utility
from ..statistics import SeedStatistics, json_value, mean_if_known, over_seeds
from .experiment import RISKY, SAFE, Experiment, Setting
from .generations import read_generations

VERBATIM: Final = "verbatim"
"""Rows of what the safe model gives to the references."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SettingSummary:
    """What one setting copied, spent and was worth."""

    setting: Setting
    copying: dict[str, SeedStatistics]
    ncr: NcrStatistics
    utility: dict[str, Utility]
    """By held-out set."""
    gap_closed: float
    """Share of the gap in bits per byte between p_s and p_r on the extra set; nan without a gap,
    and where a text that the rule cannot write costs infinitely many bits."""
    mean_spent: float | None
    mean_bound: float | None
    risky_token_share: float
    """Share of tokens where the safe model's draw was not kept."""
    is_within_bounds: bool
    """Every certified ledger satisfies its bound."""
    recited: float | None = None
    """The largest probability that bounds left to texts that begin with their references, a mean
    over texts; None without a bound, and where it was not measured."""

    def as_row(self) -> dict[str, Any]:
        """The table's row: statistics over seeds, bits per byte by held-out set."""
        bits = {f"bits_per_byte/{name}": u.bits_per_byte for name, u in self.utility.items()}
        return {
            "setting": self.setting.name,
            **self.copying,
            "ncr": self.ncr,
            "recited": self.recited,
            **bits,
            "gap_closed": self.gap_closed,
            "spent": self.mean_spent,
            "bound": self.mean_bound,
            "risky_tokens": self.risky_token_share,
        }

    def as_json(self) -> dict[str, Any]:
        """Plain values for results.json; what is not defined or infinite is None."""
        errors = {f"bits_per_byte_se/{n}": u.standard_error for n, u in self.utility.items()}
        row = {**self.as_row(), **errors, "k": self.setting.k}
        return {**json_value(row), "is_within_bounds": self.is_within_bounds}


def summarize(experiment: Experiment) -> list[SettingSummary]:
    """Summaries in the order of the settings."""
    # The six metrics' means, one mapping a seed in the order of the seeds.
    copying = experiment.read_rows("copying_means")
    by_seed = {
        s.name: [row for row in copying if row["setting"] == s.name] for s in experiment.settings
    }
    utility: dict[str, dict[str, Utility]] = {}
    for row in experiment.read_rows("utility"):
        of_setting = utility.setdefault(row["setting"], {})
        nats = [math.inf if each is None else each for each in row["nats"]]
        of_setting[row["held_out"]] = Utility(nats=nats, num_bytes=row["num_bytes"])
    bits = {name: sets[experiment.extra].bits_per_byte for name, sets in utility.items()}
    gap = bits[SAFE] - bits[RISKY]
    return [
        SettingSummary(
            setting=setting,
            copying={
                metric: over_seeds([means[metric] for means in by_seed[setting.name]])
                for metric in METRICS
            },
            ncr=ncr_over_seeds(by_seed[setting.name], risky=by_seed[RISKY], safe=by_seed[SAFE]),
            utility=utility[setting.name],
            gap_closed=(bits[SAFE] - bits[setting.name]) / gap
            if gap > 0 and math.isfinite(bits[setting.name])
            else math.nan,
            **_spends(experiment, setting),
            recited=mean_if_known(copy_probabilities(experiment, setting)),
        )
        for setting in experiment.settings
    ]


def recommended(summaries: list[SettingSummary]) -> SettingSummary:
    """Of the budgets with NCR >= 0.75 the one that closes most of the gap; else the safest one."""
    anchored = [summary for summary in summaries if summary.setting.k is not None]
    protected = [summary for summary in anchored if is_high_protection(summary.ncr.mean)]
    if not protected:
        return max(anchored, key=lambda summary: or_least(summary.ncr.mean))
    return max(protected, key=lambda summary: or_least(summary.gap_closed))


def _spends(experiment: Experiment, setting: Setting) -> dict[str, Any]:
    rows = read_generations(experiment, setting)
    certified = [row for row in rows if row["certified"]]
    return {
        "mean_spent": mean_if_known(row["spent"] for row in rows),
        "mean_bound": mean_if_known(row["bound"] for row in rows),
        "risky_token_share": sum(row["risky_tokens"] for row in rows)
        / sum(row["num_tokens"] for row in rows),
        "is_within_bounds": all(row["is_within_bound"] for row in certified),
    }


def copy_probabilities(experiment: Experiment, setting: Setting) -> list[float | None]:
    """Of each recorded text of a setting, how likely its bound let it begin with its reference."""
    rows = read_generations(experiment, setting)
    if not experiment.has_rows(VERBATIM):
        return [None for _ in rows]
    log_probs = {row["work"]: row["safe_log_prob"] for row in experiment.read_rows(VERBATIM)}
    divergence = setting.rule.divergence or "kl"
    bounds = [row["bound"] if row["certified"] else None for row in rows]
    return [
        None
        if bound is None or row["work"] not in log_probs
        else event_bound(bound, log_probs[row["work"]], divergence=divergence)
        for row, bound in zip(rows, bounds, strict=True)
    ]
