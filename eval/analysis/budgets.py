"""How budgets are used: along one text, and how often the safe model's draw is kept."""

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Final

from ...decode.ledger import Ledger
from ..figures.curves import BudgetTrajectory, plot_budget_trajectories
from ..figures.series import plot_series
from ..recorded_texts import grouped
from ..report.tables import Cell, Column
from ..statistics import over_seeds
from .analysis import Analysis, over_k
from .recorded_run import NotMeasured, RecordedGeneration, RecordedRun

NUM_TRAJECTORIES: Final = 6


def budget_trajectories(run: RecordedRun) -> Analysis:
    """What one text of some budgets might spend and spent, step by step.

    Source: paper, section "Adaptive Budgeting Handles Non-uniform Risk".
    """
    found = [(name, run.ledgers(name)) for name in run.budgeted]
    if not found:
        raise NotMeasured("no setting with a bound has its ledgers here")
    count = min(NUM_TRAJECTORIES, len(found))
    chosen = [found[place * len(found) // count] for place in range(count)]
    shown = [(name, *_longest(own)) for name, own in chosen]
    return Analysis(
        title="What single texts might spend and spent",
        note=f"The longest text of {count} of {len(found)} settings with a bound, as recorded in "
        "its ledger; nats.",
        columns=[
            Column(key="setting", title="setting"),
            Column(key="text", title="text"),
            *(Column(key=key, title=key, num_decimals=2) for key in ("k", "debt", "bound")),
            Column(key="spent", title="spent", num_decimals=2),
            Column(key="steps", title="steps"),
            Column(key="idle", title="steps at no budget"),
        ],
        rows=[
            {
                "setting": name,
                "text": f"{own.id}, seed {own.seed}",
                "k": ledger.header.k,
                "debt": ledger.header.debt,
                "bound": ledger.header.bound,
                "spent": ledger.spent,
                "steps": len(ledger.steps),
                "idle": sum(step.budget <= 0.0 for step in ledger.steps),
            }
            for name, own, ledger in shown
        ],
        draw=partial(
            plot_budget_trajectories,
            [BudgetTrajectory.of(f"{name}\n{own.id}", ledger) for name, own, ledger in shown],
            symbol=shown[0][2].header.level,
        ),
    )


def _longest(own: Sequence[tuple[RecordedGeneration, Ledger]]) -> tuple[RecordedGeneration, Ledger]:
    return max(own, key=lambda each: len(each[1].steps))


def acceptance(run: RecordedRun) -> Analysis:
    """How often the safe model's own draw is kept, by k, beside what divergences allow.

    A draw x of p_s is kept with probability min(1, p*(x) / p_s(x)), on average 1 - TV(p*, p_s).
    """
    found = (_kept(name, run.by_setting[name], run) for name in run.budgeted)
    rows = [row for row in found if row is not None]
    if not rows:
        raise NotMeasured("no setting with a bound has recorded tokens")
    drawn = [row for row in rows if row["setting"] in run.k_sweep]
    return Analysis(
        title="How often the safe model's draw is kept",
        note="Kept: the share of tokens that are the safe model's own draw, which estimates the "
        "mean of 1 - TV(p*, p_s). At least: what follows for it from the spends (Pinsker; "
        "Bretagnolle and Huber), and for 1 - TV(p*, p_r) from recorded divergences "
        "(anchored divergences), where a setting has them. The picture shows the settings that "
        "differ in k alone.",
        columns=[
            Column(key="setting", title="setting"),
            Column(key="k", title="k", num_decimals=2),
            Column(key="kept", title="kept"),
            Column(key="safe_overlap", title="1 - TV(p*, p_s) at least"),
            Column(key="risky_overlap", title="1 - TV(p*, p_r) at least"),
        ],
        rows=rows,
        draw=partial(
            plot_series,
            {"": {title: over_k(drawn, key) for key, title in _CURVES.items()}},
            title="How often the safe model's draw is kept",
            x_label="k, nats a step",
            y_label="share of steps",
            log_x=True,
        ),
    )


_CURVES: Final = {
    "kept": "kept",
    "safe_overlap": "1 - TV(p*, p_s), at least",
    "risky_overlap": "1 - TV(p*, p_r), at least",
}


def overlap_bound(nats: float) -> float:
    """A lower bound on 1 - TV of two laws whose KL divergence is `nats`, >= 0; inf gives 0.

    Source: Pinsker, TV <= sqrt(KL / 2); Bretagnolle and Huber 1979, TV <= sqrt(1 - exp(-KL)).
    """
    return 1.0 - min(math.sqrt(nats / 2), math.sqrt(-math.expm1(-nats)))


def _kept(
    name: str, texts: Sequence[RecordedGeneration], run: RecordedRun
) -> dict[str, Cell] | None:
    counted = [own for own in texts if own.row.get("num_tokens")]
    ledgers = [ledger for _, ledger in run.ledgers(name)]
    if not counted or not ledgers:
        return None
    shares = [
        1
        - sum(own.row["risky_tokens"] for own in rows) / sum(own.row["num_tokens"] for own in rows)
        for rows in grouped(counted, lambda own: own.seed).values()
    ]
    spends = [step.spend for ledger in ledgers for step in ledger.steps]
    like = [ledger for ledger in run.replayed if ledger.header.rule_settings == _settings(ledgers)]
    apart = [
        step.kl_star_risky
        for ledger in itertools.chain(like, ledgers)
        for step in ledger.steps
        if step.kl_star_risky is not None
    ]
    return {
        "setting": name,
        "k": run.ks.get(name),
        "kept": over_seeds(shares),
        "safe_overlap": _mean_overlap(spends),
        "risky_overlap": _mean_overlap(apart),
    }


def _settings(ledgers: Sequence[Ledger]) -> dict[str, object]:
    return ledgers[0].header.rule_settings


def _mean_overlap(nats: Sequence[float]) -> float | None:
    return sum(map(overlap_bound, nats)) / len(nats) if nats else None
