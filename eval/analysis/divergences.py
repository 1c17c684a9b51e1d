"""How far apart the two models are: along the risky model's texts, and on the prompts."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from ...decode.ledger import Ledger
from ..figures.distributions import plot_densities, plot_histogram_and_tail
from ..report.tables import Cell, Column
from .analysis import Analysis
from .recorded_run import NotMeasured, RecordedRun

TAIL: Final = 0.9
"""The quantile of all domains together from which on tails are compared."""
_QUANTILES: Final = {"median": 0.5, "q90": 0.9, "q99": 0.99, "q995": 0.995}


def step_divergences(run: RecordedRun) -> Analysis:
    """KL(p_r || p_s) of every step of the risky model's own texts, by domain.

    Source: paper, section "KL is a Useful Memorization Diagnostic".
    """
    if run.risky is None:
        raise NotMeasured("no setting is the risky model alone")
    samples: dict[str, list[float]] = {}
    for own, ledger in run.ledgers(run.risky):
        samples.setdefault(run.domain(own), []).extend(_step_divergences(ledger))
    samples = {domain: nats for domain, nats in samples.items() if nats}
    if not samples:
        raise NotMeasured("the risky model ran without the safe one beside it (compared=False)")
    cutoff = _pooled_quantile(samples, TAIL)
    rows = [
        {
            **_spread(domain, nats, "steps"),
            "tail": sum(each >= cutoff for each in nats) / len(nats),
        }
        for domain, nats in samples.items()
    ]
    return Analysis(
        title="How far apart the models are at each step",
        note="KL(p_r || p_s) in nats, as both are warped, along texts of the risky model alone. "
        f"Tail: the share of steps at or above {cutoff:.3g} nats, the 90 % quantile of all "
        "domains together. Infinite figures count in the quantiles, not in the picture.",
        columns=[
            *_spread_columns("domain", "steps"),
            Column(key="tail", title="tail", num_decimals=4),
        ],
        rows=rows,
        draw=partial(
            plot_histogram_and_tail,
            _finite(samples),
            tail_from=cutoff,
            title="How far apart the models are at each step of the risky model's texts",
            label="KL(p_r || p_s), nats",
        ),
    )


def _step_divergences(ledger: Ledger) -> list[float]:
    """What the risky model alone spends is its divergence, where the safe model ran beside it."""
    return [step.spend for step in ledger.steps if step.safe_log_prob is not None]


def prefix_ratios(run: RecordedRun) -> Analysis:
    """log p_r - log p_s of the prompts' symbols, and the debts that follow, by domain.

    Source: paper, section "Copying Risk is Front-loaded in Early Generation".
    """
    ratios = run.by_domain(run.prompt_ratios)
    debts = run.by_domain({prompt: [debt] for prompt, debt in run.debts.items()})
    if not ratios and not debts:
        raise NotMeasured("no ledger has a prefix debt, and no prompt's ratios are recorded")
    parts = {"ratio of a symbol": ratios, "debt of a prompt": debts}
    rows = [
        {"figure": figure, **_spread(domain, nats, "count")}
        for figure, own in parts.items()
        for domain, nats in own.items()
    ]
    panels = {figure: _finite(own) for figure, own in parts.items() if any(_finite(own).values())}
    lacking = "" if ratios else " The ratios themselves are not recorded here."
    return Analysis(
        title="How much more the risky model expects of the prompts",
        note="log p_r - log p_s of each symbol of a prompt but its first, unwarped, and the debt, "
        "the mean of the largest positive ones, both in nats." + lacking,
        columns=[Column(key="figure", title="figure"), *_spread_columns("domain", "count")],
        rows=rows,
        draw=partial(
            plot_densities,
            panels,
            title="How much more the risky model expects of the prompts",
            label="nats",
        ),
    )


def _spread(domain: str, nats: Sequence[float], count: str) -> dict[str, Cell]:
    quantiles = {name: _quantile(nats, share) for name, share in _QUANTILES.items()}
    return {"domain": domain, count: len(nats), "mean": sum(nats) / len(nats), **quantiles}


def _spread_columns(first: str, count: str) -> list[Column]:
    titles = {"mean": "mean", "median": "median", "q90": "90 %", "q99": "99 %", "q995": "99.5 %"}
    figures = [Column(key=key, title=title) for key, title in titles.items()]
    return [Column(key=first, title=first), Column(key=count, title=count), *figures]


def _quantile(nats: Sequence[float], share: float) -> float:
    """A value that was measured: none lies between a figure and an infinite one."""
    return float(np.quantile(np.array(nats), share, method="higher"))


def _pooled_quantile(samples: Mapping[str, Sequence[float]], share: float) -> float:
    return _quantile([nats for own in samples.values() for nats in own], share)


def _finite(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    finite: Callable[[float], bool] = math.isfinite
    return {name: list(filter(finite, own)) for name, own in samples.items()}
