"""Analyses of ledgers: divergences of the two models, and the use of budgets."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from ..figures.curves import BudgetTrajectory, plot_budget_trajectories
from ..figures.distributions import Series, density, histogram, plot_series, tail
from ..recorded_texts import RISKY
from ..report.page import Section
from ..report.tables import SETTING_COLUMN, Cell, Column
from .recorded_run import NotMeasured, RecordedRun, evenly

TAIL: Final = 0.9
"""The quantile of all domains together at which tails begin."""
NUM_BINS: Final = 40
NUM_TRAJECTORIES: Final = 6
"""Settings whose texts are drawn: two rows of three panels."""
_QUANTILES: Final = {"median": 0.5, "q90": 0.9, "q99": 0.99, "q995": 0.995}


def step_divergences(run: RecordedRun) -> Section:
    """KL(p_r || p_s) of every step of the texts of the risky model alone, by domain.

    Source: paper, section "KL is a Useful Memorization Diagnostic".
    """
    samples: dict[str, list[float]] = {}
    for text, ledger in run.ledgers(RISKY):
        # A spend of the risky model alone is its divergence, if the safe model ran at the step.
        nats = [step.spend for step in ledger.steps if step.safe_log_prob is not None]
        if nats:
            samples.setdefault(run.domain(text), []).extend(nats)
    if not samples:
        raise NotMeasured("no ledger of the risky model alone has divergences (compared=True)")
    cutoff = _quantile([each for nats in samples.values() for each in nats], TAIL)
    rows = [
        {**_spread(domain, nats, "steps"), "tail": sum(each >= cutoff for each in nats) / len(nats)}
        for domain, nats in samples.items()
    ]
    return Section(
        title="How far apart the models are at each step",
        note="KL(p_r || p_s) in nats, as both are warped, along texts of the risky model alone. "
        f"Tail: the share of steps at or above {cutoff:.3g} nats, the 90 % quantile of all "
        "domains together. Infinite figures count in the quantiles, not in the picture.",
        columns=[*_spread_columns("domain", "steps"), Column("tail", num_decimals=4)],
        rows=rows,
        draw=partial(
            plot_series,
            _divergence_panels(_finite(samples), cutoff),
            title="How far apart the models are at each step of the risky model's texts",
            x_label="KL(p_r || p_s), nats",
            y_label="share of steps",
            look="steps",
            log_y=["as many nats or more"],
        ),
    )


def _divergence_panels(
    samples: Mapping[str, Sequence[float]], cutoff: float
) -> dict[str, dict[str, Series]]:
    """Shares of steps by divergence, and from the cutoff on of as much or more, by domain."""
    known = {domain: nats for domain, nats in samples.items() if nats}
    edges = np.linspace(0.0, max(map(max, known.values()), default=0.0) or 1.0, NUM_BINS + 1)
    return {
        "so many nats": {
            name: histogram(nats, edges.tolist(), len(nats)) for name, nats in known.items()
        },
        "as many nats or more": {name: tail(nats, cutoff) for name, nats in known.items()},
    }


def prefix_ratios(run: RecordedRun) -> Section:
    """log p_r - log p_s of the prompts' symbols, and the debts that follow, by domain.

    Source: paper, section "Copying Risk is Front-loaded in Early Generation".
    """
    ratios = run.by_domain(run.prompt_ratios)
    parts = {"ratio of a symbol": ratios} | {
        f"debt, window {window}": run.by_domain({name: [debt] for name, debt in debts.items()})
        for window, debts in sorted(run.debts.items())
    }
    if not any(parts.values()):
        raise NotMeasured("no ledger has a prefix debt, and no prompt's ratios are recorded")
    rows = [
        {"figure": figure, **_spread(domain, nats, "count")}
        for figure, samples in parts.items()
        for domain, nats in samples.items()
    ]
    panels = {
        figure: {name: density(nats) for name, nats in _finite(samples).items() if nats}
        for figure, samples in parts.items()
        if samples
    }
    lacking = "" if ratios else " The ratios themselves are not recorded here."
    return Section(
        title="How much more the risky model expects of the prompts",
        note="log p_r - log p_s of each symbol of a prompt but its first, unwarped, and the debt, "
        "the mean of the largest positive ones, both in nats." + lacking,
        columns=[Column("figure"), *_spread_columns("domain", "count")],
        rows=rows,
        draw=partial(
            plot_series,
            panels,
            title="How much more the risky model expects of the prompts",
            x_label="nats",
            y_label="density, by Gaussian kernels",
        ),
    )


def _spread(domain: str, nats: Sequence[float], count: str) -> dict[str, Cell]:
    quantiles = {name: _quantile(nats, share) for name, share in _QUANTILES.items()}
    return {"domain": domain, count: len(nats), "mean": sum(nats) / len(nats), **quantiles}


def _spread_columns(first: str, count: str) -> list[Column]:
    titles = {"mean": "mean", "median": "median", "q90": "90 %", "q99": "99 %", "q995": "99.5 %"}
    figures = [Column(key, title) for key, title in titles.items()]
    return [Column(first), Column(count), *figures]


def _quantile(nats: Sequence[float], share: float) -> float:
    """A value that was measured: none lies between a figure and an infinite one."""
    return float(np.quantile(np.array(nats), share, method="higher"))


def _finite(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: list(filter(math.isfinite, nats)) for name, nats in samples.items()}


def budget_trajectories(run: RecordedRun) -> Section:
    """Allowances and spends of one text of some settings, step by step.

    Source: paper, section "Adaptive Budgeting Handles Non-uniform Risk".
    """
    if not run.budgeted:
        raise NotMeasured("no setting with a bound has its ledgers here")
    shown = [
        (name, *max(run.ledgers(name), key=lambda pair: len(pair[1].steps)))
        for name in evenly(run.budgeted, NUM_TRAJECTORIES)
    ]
    return Section(
        title="What single texts might spend and spent",
        note=f"The longest text of {len(shown)} of {len(run.budgeted)} settings with a bound, as "
        "recorded in its ledger; nats.",
        columns=[
            SETTING_COLUMN,
            Column("text"),
            *(Column(key, num_decimals=2) for key in ("k", "debt", "bound")),
            Column("spent", num_decimals=2),
            Column("steps"),
            Column("idle", "steps at no budget"),
        ],
        rows=[
            {
                "setting": name,
                "text": f"{text.id}, seed {text.seed}",
                "k": ledger.header.k,
                "debt": ledger.header.debt,
                "bound": ledger.header.bound,
                "spent": ledger.spent,
                "steps": len(ledger.steps),
                "idle": sum(step.budget <= 0.0 for step in ledger.steps),
            }
            for name, text, ledger in shown
        ],
        draw=partial(
            plot_budget_trajectories,
            [BudgetTrajectory.of(f"{name}\n{text.id}", ledger) for name, text, ledger in shown],
            symbol=shown[0][2].header.level,
        ),
    )
