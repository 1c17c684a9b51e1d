"""One row per setting: copying over seeds, NCR, held-out bits per byte, spends."""

import math
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...decode.event_bound import charged_event_bound
from ...decode.rules.rule import Rule
from ..copying.literal import means_over_seeds, paired_ncr, scores_by_setting
from ..copying.metrics import METRICS
from ..copying.ncr import HIGH_PROTECTION, or_least
from ..quality.bits_per_byte import Utility
from ..recorded_texts import ALONE, RISKY, SAFE
from ..statistics import largest_if_known, mean_if_known, mean_of
from .experiment import Experiment, Setting
from .generations import failed_generations, read_generations

VERBATIM: Final = "verbatim"
"""Name of the rows of the references' log-probabilities under the safe model."""
GOOD_ENOUGH: Final = 0.5
"""Share of the gap in utility that a recommended budget closes: on the quickstart's pair those that
close much more of it prove little of the worst text, or nothing."""

Row = Mapping[str, Any]


def summarize(experiment: Experiment) -> list[dict[str, Any]]:
    """A row of figures per setting, in their order.

    Statistics over seeds of the copying metrics (None if no prompt has a reference) and "ncr";
    "bits_per_byte/SET" and "bits_per_byte_se/SET" of held-out sets; "accuracy/TASK" of lm-eval;
    "gap_closed", the share of the gap in bits per byte between p_s and p_r on the extra set, nan
    without a gap or held-out texts, and if a text failed or costs infinitely many bits, as the rule
    cannot write it; "recited", the largest probability that bounds leave to any text to begin with
    its reference, which is that of the worst text, its "log10_recited", and "log10_recited_mean",
    the mean of the log10 over texts, which is no bound of any; means of "spent" and "bound", nats;
    "risky_tokens", the share of tokens where the safe model's draw was rejected; "failed", the
    number of generations with an error, which the other figures leave out; "is_within_bounds",
    whether every certified ledger satisfies its bound.
    """
    measured, utility = scores_by_setting(experiment.copying), utilities(experiment)
    safe, risky = measured.get(SAFE, {}), measured.get(RISKY, {})
    accuracy: dict[str, dict[str, float]] = {}
    for row in experiment.read_rows("questions"):
        accuracy.setdefault(row["setting"], {})[f"accuracy/{row['task']}"] = row["acc"]
    log_probs = {row["id"]: row["safe_log_prob"] for row in experiment.read_rows(VERBATIM)}
    bits = {name: sets[experiment.extra].bits_per_byte for name, sets in utility.items()}
    rows = []
    for setting in experiment.settings:
        scores, of_sets = measured.get(setting.name, {}), utility.get(setting.name, {})
        rows.append(
            {
                "setting": setting.name,
                **dict.fromkeys(METRICS),
                **means_over_seeds(scores),
                "ncr": paired_ncr(scores, risky=risky, safe=safe),
                **{f"bits_per_byte/{name}": each.bits_per_byte for name, each in of_sets.items()},
                **accuracy.get(setting.name, {}),
                "gap_closed": _gap_closed(bits, setting.name),
                **_spends(experiment, setting, log_probs),
                **{f"bits_per_byte_se/{n}": each.standard_error for n, each in of_sets.items()},
                "k": setting.k,
                **({"method": setting.method} if setting.method else {}),
            }
        )
    return rows


def utilities(experiment: Experiment) -> dict[str, dict[str, Utility]]:
    """Held-out bits by setting and set."""
    utility: dict[str, dict[str, Utility]] = {}
    for row in experiment.read_rows("utility"):
        # JSON holds neither infinitely many bits nor the missing figure of an excerpt that failed.
        missing = math.nan if "error" in row else math.inf
        nats = [missing if each is None else each for each in row["nats"]]
        of_setting = utility.setdefault(row["setting"], {})
        of_setting[row["held_out"]] = Utility(nats=nats, num_bytes=row["num_bytes"])
    return utility


def _gap_closed(bits: Mapping[str, float], name: str) -> float:
    """The share of the gap between both models that a setting closes; nan without a gap."""
    gap = bits[SAFE] - bits[RISKY] if bits else math.nan
    if not gap > 0 or not math.isfinite(bits[name]):
        return math.nan
    return (bits[SAFE] - bits[name]) / gap


def recommended(rows: Iterable[Row]) -> Row:
    """Of the bounded settings with NCR >= 0.75 that close GOOD_ENOUGH of the gap in utility, the
    one that proves most of the worst text, and the first of several.

    If none does, the one with NCR >= 0.75 that closes most of it; if none protects, the one that
    copies least. Measured copying says nothing of other prompts, the bound does.
    """

    def ncr(row: Row) -> float:
        return or_least(mean_of(row["ncr"]))

    bounded = [row for row in rows if row["setting"] not in ALONE]
    protected = [row for row in bounded if ncr(row) >= HIGH_PROTECTION]
    if not protected:
        return max(bounded, key=ncr)
    if good := [row for row in protected if row["gap_closed"] >= GOOD_ENOUGH]:
        return min(good, key=lambda row: 1.0 if row["recited"] is None else row["recited"])
    return max(protected, key=lambda row: or_least(row["gap_closed"]))


def _spends(
    experiment: Experiment, setting: Setting, log_probs: Mapping[str, float]
) -> dict[str, Any]:
    rows = read_generations(experiment, setting)
    certified = rows if setting.rule.is_certified else []
    num_tokens = sum(row["num_tokens"] for row in rows)
    num_risky = sum(row["risky_tokens"] for row in rows)
    recited = copy_probabilities(rows, log_probs, setting.rule)
    log10s = [None if each is None else log10_of(each) for each in recited]
    return {
        "recited": largest_if_known(recited),
        "log10_recited": largest_if_known(log10s),
        "log10_recited_mean": mean_if_known(log10s),
        "spent": mean_if_known(row["spent"] for row in rows),
        "bound": mean_if_known(row["bound"] for row in rows),
        "risky_tokens": num_risky / num_tokens if num_tokens else math.nan,
        "failed": len(failed_generations(experiment, setting)),
        "is_within_bounds": all(row["is_within_bound"] for row in certified),
    }


def log10_of(probability: float) -> float:
    """log10 of a bound, of the least float64 where it is below that."""
    return math.log10(max(probability, sys.float_info.min))


def copy_probabilities(
    rows: Iterable[Mapping[str, Any]], log_probs: Mapping[str, float], rule: Rule
) -> list[float | None]:
    """The largest probability that each text's bound left to beginning with its reference.

    None without a bound, or without the reference's log-probability. rows: of `read_generations`.
    log_probs: log p_s of the references by id, nats (VERBATIM).
    """
    return [
        charged_event_bound(rule.charge, row["bound"], log_probs[row["id"]])
        if row["certified"] and row["bound"] is not None and row["id"] in log_probs
        else None
        for row in rows
    ]
