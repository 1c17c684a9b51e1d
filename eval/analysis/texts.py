"""Analyses of a run's generations: divergences of the models, debts, budgets, and copied spans by
the prompt's debt and by their position in the text."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from ..figures.curves import BudgetTrajectory, plot_budget_trajectories
from ..figures.distributions import Series, density, histogram, plot_series, tail
from ..figures.style import BLUE, GREEN, PURPLE, VERMILION
from ..recorded_texts import ALONE, RISKY, SAFE, Record, grouped
from ..report.page import Section
from ..report.tables import Cell, Column, Row, columns_of
from .recorded_run import NotMeasured, RecordedRun, evenly

TAIL: Final = 0.9
"""The quantile of all domains together at which tails begin."""
NUM_STEP_BINS: Final = 40
NUM_TRAJECTORIES: Final = 6
"""Settings whose texts are drawn: two rows of three panels."""
_QUANTILES: Final = {"median": 0.5, "q90": 0.9, "q99": 0.99, "q995": 0.995}
NUM_GROUPS: Final = 10
BIN_WORDS: Final = 5
EARLY_WORDS: Final = 10
METRIC_TITLES: Final = {
    "rouge1_f1": "ROUGE-1",
    "rougeL_f1": "ROUGE-L",
    "word_lcs": "word LCS",
    "char_lcs": "char LCS",
    "word_acs": "ACS",
    "minhash": "MinHash",
}
"""The six metrics of one text; ROUGE as its F1."""
_OURS, _OTHERS = "with a bound", "other methods"
_COLORS: Final = {ALONE[SAFE]: GREEN, ALONE[RISKY]: VERMILION, _OURS: BLUE, _OTHERS: PURPLE}


def step_divergences(run: RecordedRun) -> Section:
    """KL(p_r || p_s) of every step of the texts of the risky model alone, by domain. Source: paper,
    section "KL is a Useful Memorization Diagnostic"."""
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
    finite = _finite(samples)
    edges = np.linspace(0.0, max(map(max, finite.values()), default=0.0) or 1.0, NUM_STEP_BINS + 1)
    bins = {name: histogram(nats, edges.tolist(), len(nats)) for name, nats in finite.items()}
    tails = {name: tail(nats, cutoff) for name, nats in finite.items()}
    return Section(
        title="How far apart the models are at each step",
        note="KL(p_r || p_s) in nats, as both are warped, along texts of the risky model alone. "
        f"Tail: the share of steps at or above {cutoff:.3g} nats, the 90 % quantile of all "
        "domains together. Infinite figures count in the quantiles, not in the picture.",
        columns=[*_spread_columns("steps"), Column("tail", num_decimals=4)],
        rows=rows,
        draw=partial(
            plot_series,
            {"so many nats": bins, "as many nats or more": tails},
            title="How far apart the models are at each step of the risky model's texts",
            x_label="KL(p_r || p_s), nats",
            y_label="share of steps",
            look="steps",
            log_y=["as many nats or more"],
        ),
    )


def prefix_ratios(run: RecordedRun) -> Section:
    """log p_r - log p_s of the prompts' symbols, and the debts that follow, by domain. Source:
    paper, section "Copying Risk is Front-loaded in Early Generation"."""
    ratios = run.by_domain(run.prompt_ratios)
    parts = {"ratio of a symbol": ratios} | {
        f"debt, window {window}": run.by_domain({name: [debt] for name, debt in debts.items()})
        for window, debts in sorted(run.debts.items())
    }
    if not any(parts.values()):
        raise NotMeasured("no ledger has a prefix debt, and no prompt's ratios are recorded")
    panels = {
        figure: {name: density(nats) for name, nats in _finite(samples).items()}
        for figure, samples in parts.items()
        if samples
    }
    lacking = "" if ratios else " The ratios themselves are not recorded here."
    return Section(
        title="How much more the risky model expects of the prompts",
        note="log p_r - log p_s of each symbol of a prompt but its first, unwarped, and the debt, "
        "the mean of the largest positive ones, both in nats." + lacking,
        columns=[Column("figure"), *_spread_columns("count")],
        rows=[
            {"figure": figure, **_spread(domain, nats, "count")}
            for figure, samples in parts.items()
            for domain, nats in samples.items()
        ],
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


def _spread_columns(count: str) -> list[Column]:
    quantiles = (("q90", "90 %"), ("q99", "99 %"), ("q995", "99.5 %"))
    return columns_of("domain", count, "mean", "median", *quantiles)


def _quantile(nats: Sequence[float], share: float) -> float:
    """A value that was measured: none lies between a figure and an infinite one."""
    return float(np.quantile(np.array(nats), share, method="higher"))


def _finite(samples: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """The finite figures of each sample that has some."""
    known = {name: list(filter(math.isfinite, nats)) for name, nats in samples.items()}
    return {name: nats for name, nats in known.items() if nats}


def budget_trajectories(run: RecordedRun) -> Section:
    """Allowances and spends of one text of some settings, step by step. Source: paper, section
    "Adaptive Budgeting Handles Non-uniform Risk"."""
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
            *columns_of("setting", "text", ("k", "", 2), ("debt", "", 2), ("bound", "", 2)),
            *columns_of(("spent", "", 2), "steps", ("idle", "steps at no budget")),
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


def debt_deciles(run: RecordedRun) -> Section:
    """The risky model's copying by tenths of the prompts in order of their debt, by window. Source:
    paper, figure "Prefix debt correlates with copying metrics"."""
    copied = grouped(_copying(run, RISKY), lambda row: str(row["id"]))
    rows: list[dict[str, float]] = []
    for window, debts in sorted(run.debts.items()):
        of_texts = sorted((nats, name) for name, nats in debts.items() if name in copied)
        known = [name for nats, name in of_texts if math.isfinite(nats)]
        groups = np.array_split(known, min(NUM_GROUPS, len(known))) if known else []
        for number, prompts in enumerate(groups, 1):
            texts = [row for prompt in prompts for row in copied[prompt]]
            about = {"window": window, "decile": number, "prompts": len(prompts)}
            debt = {"from": debts[prompts[0]], "to": debts[prompts[-1]]}
            means = {key: sum(row[key] for row in texts) / len(texts) for key in METRIC_TITLES}
            rows.append({**about, **debt, **means})
    if not rows:
        raise NotMeasured("no text of the risky model alone has both a copying row and a debt")
    by_window = grouped(rows, lambda row: f"window {row['window']}")
    return Section(
        title="Debts of prompts and what is copied after them",
        note="Prompts in order of their debt, the mean of as many of their largest ratios as the "
        "window has, in at most ten groups; means of the six metrics over the texts of the risky "
        "model alone. ROUGE is F1.",
        columns=[
            *columns_of("window", ("decile", "group"), "prompts", ("from", "debt from", 2)),
            *columns_of(("to", "", 2), *METRIC_TITLES.items()),
        ],
        rows=rows,
        draw=partial(
            plot_series,
            {
                title: {
                    window: Series([row["decile"] for row in same], [row[key] for row in same])
                    for window, same in by_window.items()
                }
                for key, title in METRIC_TITLES.items()
            },
            title="What the risky model copies after prompts of growing debt",
            x_label="group of prompts, by debt",
            y_label="mean",
        ),
    )


def start_positions(run: RecordedRun) -> Section:
    """The starts of the copied spans of each setting's texts, in words. Source: paper, figure
    "High-copying regions are front-loaded"."""
    copied = {setting: _copying(run, setting) for setting in run.by_setting}
    starts = {setting: _starts(texts) for setting, texts in copied.items()}
    rows: list[Row] = [
        {
            "setting": setting,
            "spans": spans,
            "texts": len(words),
            "median": float(np.median(words)),
            "early": sum(start < EARLY_WORDS for start in words) / len(words),
        }
        for setting, by_spans in starts.items()
        for spans, words in by_spans.items()
        if words
    ]
    if not rows:
        raise NotMeasured("no copied span is recorded (evaluation/copying.json)")
    panels: dict[str, dict[str, Series]] = {}
    kinds = {name: _OURS if name in run.budgeted else _OTHERS for name in starts} | ALONE
    for kind, settings in grouped(starts, kinds.__getitem__).items():
        num_texts = sum(len(copied[setting]) for setting in settings)
        for spans in starts[settings[0]]:
            words = [start for setting in settings for start in starts[setting][spans]]
            if words:
                edges = np.arange(0.0, max(words) + BIN_WORDS + 1, BIN_WORDS).tolist()
                panels.setdefault(spans, {})[kind] = histogram(words, edges, num_texts)
    return Section(
        title="Where copied spans begin",
        note="Words before the longest common span of a text, whatever its length and where it has "
        "five words at least, and before the first span that ACS counts. Early: the share that "
        f"begins within the first {EARLY_WORDS} words.",
        columns=columns_of("setting", "spans", "texts", ("median", "median start", 1), "early"),
        rows=rows,
        draw=partial(
            plot_series,
            panels,
            title="Where copied spans begin, counted in words",
            x_label="words before the span",
            y_label=f"share of texts, by {BIN_WORDS} words",
            look="steps",
            colors=_COLORS,
        ),
    )


def _starts(rows: Sequence[Record]) -> dict[str, list[int]]:
    """First words of the texts' spans, by kind of span."""
    longest = [row["word_lcs_span"] for row in rows]
    return {
        "word LCS": [start for start, _, length in longest if length],
        "word LCS of 5 words": [start for start, _, length in longest if length >= 5],
        "ACS": [min(span[0] for span in spans) for row in rows if (spans := row["word_acs_spans"])],
    }


def _copying(run: RecordedRun, setting: str) -> list[Record]:
    """Rows of evaluation/copying.json of a setting's texts."""
    rows = map(run.copying, run.by_setting.get(setting, []))
    return [row for row in rows if row is not None]
