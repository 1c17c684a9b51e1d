"""Where and when texts copy: by the prompt's debt, by place in the text, by nats spent."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from ..figures.series import Series, plot_series
from ..recorded_texts import grouped
from ..report.tables import Cell, Column
from .analysis import Analysis, Row
from .recorded_run import RISKY_RULE, SAFE_RULE, NotMeasured, RecordedGeneration, RecordedRun

NUM_BINS: Final = 10
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


def debt_deciles(run: RecordedRun) -> Analysis:
    """What the risky model copies, by tenths of the prompts in order of their debt.

    Source: paper, figure "Prefix debt correlates with copying metrics".
    """
    debts = {prompt: debt for prompt, debt in run.debts.items() if math.isfinite(debt)}
    texts = [own for own in _copying(run, run.risky) if own.id in debts]
    if not texts:
        raise NotMeasured("no text of the risky model alone has both a copying row and a debt")
    in_order = sorted({own.id for own in texts}, key=lambda prompt: (debts[prompt], prompt))
    bins = np.array_split(in_order, min(NUM_BINS, len(in_order)))
    rows = [_decile(number, list(own), texts, debts) for number, own in enumerate(bins, 1)]
    series = {
        title: {"risky model": Series([own["decile"] for own in rows], [own[key] for own in rows])}
        for key, title in METRIC_TITLES.items()
    }
    return Analysis(
        title="Debts of prompts and what is copied after them",
        note="Prompts in order of their debt, in at most ten groups; means of the six metrics over "
        "the texts of the risky model alone. ROUGE is F1.",
        columns=[
            Column(key="decile", title="group"),
            Column(key="prompts", title="prompts"),
            Column(key="from", title="debt from", num_decimals=2),
            Column(key="to", title="to", num_decimals=2),
            *_metric_columns(),
        ],
        rows=rows,
        draw=partial(
            plot_series,
            series,
            title="What the risky model copies after prompts of growing debt",
            x_label="group of prompts, by debt",
            y_label="mean",
        ),
    )


def _decile(
    number: int,
    prompts: Sequence[str],
    texts: Sequence[RecordedGeneration],
    debts: Mapping[str, float],
) -> dict[str, float]:
    own = [text for text in texts if text.id in prompts]
    nats = [debts[prompt] for prompt in prompts]
    means = {key: sum(_figure(text, key) for text in own) / len(own) for key in METRIC_TITLES}
    about: dict[str, float] = {
        "decile": number,
        "prompts": len(prompts),
        "from": min(nats),
        "to": max(nats),
    }
    return {**about, **means}


def start_positions(run: RecordedRun) -> Analysis:
    """Where the copied spans of each setting's texts begin, in words.

    Source: paper, figure "High-copying regions are front-loaded".
    """
    starts = {
        setting: {name: [s for own in texts for s in first(own)] for name, first in _STARTS.items()}
        for setting in run.by_setting
        if (texts := _copying(run, setting))
    }
    if not any(each for own in starts.values() for each in own.values()):
        raise NotMeasured("no copied span is recorded (measurements/copying.json)")
    rows: list[Row] = [
        {
            "setting": setting,
            "spans": name,
            "texts": len(own),
            "median": float(np.median(own)),
            "early": sum(start < EARLY_WORDS for start in own) / len(own),
        }
        for setting, kinds in starts.items()
        for name, own in kinds.items()
        if own
    ]
    shown = {name: _histograms(run, starts, name) for name in _STARTS}
    return Analysis(
        title="Where copied spans begin",
        note="Words before the longest common span of a text, whatever its length and where it has "
        "five words at least, and before the first span that ACS counts. Early: the share that "
        f"begins within the first {EARLY_WORDS} words.",
        columns=[
            Column(key="setting", title="setting"),
            Column(key="spans", title="spans"),
            Column(key="texts", title="texts"),
            Column(key="median", title="median start", num_decimals=1),
            Column(key="early", title="early"),
        ],
        rows=rows,
        draw=partial(
            plot_series,
            {name: own for name, own in shown.items() if own},
            title="Where copied spans begin, counted in words",
            x_label="words before the span",
            y_label=f"share of texts, by {BIN_WORDS} words",
            look="steps",
        ),
    )


def _lcs_start(at_least: int) -> Callable[[RecordedGeneration], list[int]]:
    def start(text: RecordedGeneration) -> list[int]:
        begin, _, length = (text.copying or {})["word_lcs_span"]
        return [begin] if length >= at_least else []

    return start


def _acs_start(text: RecordedGeneration) -> list[int]:
    return (
        [min(span[0] for span in spans)]
        if (spans := (text.copying or {})["word_acs_spans"])
        else []
    )


_STARTS: Final[dict[str, Callable[[RecordedGeneration], list[int]]]] = {
    "word LCS": _lcs_start(1),
    "word LCS of 5 words": _lcs_start(5),
    "ACS": _acs_start,
}


def _histograms(
    run: RecordedRun, starts: Mapping[str, Mapping[str, Sequence[int]]], name: str
) -> dict[str, Series]:
    """Shares of all texts of a kind of setting, by where their span begins."""
    top = max((start for own in starts.values() for start in own[name]), default=0)
    edges = np.arange(0, top + 2 * BIN_WORDS + 1, BIN_WORDS)  # the last one is empty
    found = {}
    for kind, settings in grouped(starts, partial(_kind, run)).items():
        num_texts = sum(len(_copying(run, setting)) for setting in settings)
        counts, _ = np.histogram([s for own in settings for s in starts[own][name]], edges)
        if counts.any():
            found[kind] = Series(edges[:-1].tolist(), (counts / num_texts).tolist())
    return found


def _kind(run: RecordedRun, setting: str) -> str:
    if setting in run.budgeted:
        return "with a bound"
    alone = {SAFE_RULE: "safe model alone", RISKY_RULE: "risky model alone"}
    return alone.get(run.rule(setting), "other methods")


def spend_and_copying(run: RecordedRun) -> Analysis:
    """Nats that each text spent, and the longest span that it copied."""
    points = {
        setting: [
            (float(own.row["spent"]), float(_figure(own, "word_lcs")))
            for own in _copying(run, setting)
            if own.row.get("spent") is not None
        ]
        for setting in run.budgeted
    }
    points = {setting: own for setting, own in points.items() if own}
    if not points:
        raise NotMeasured("no setting with a bound has copying rows")
    pooled = [point for own in points.values() for point in own]
    rows = [_relation(setting, own) for setting, own in points.items()]
    rows.append(_relation("all of them", pooled))
    series = {name: Series(*map(list, zip(*own, strict=True))) for name, own in points.items()}
    return Analysis(
        title="Nats spent and words copied",
        note="Of each text of a setting with a bound: what it spent and its longest copied span. "
        "Rank correlation (Spearman); none where one of both does not vary.",
        columns=[
            Column(key="setting", title="setting"),
            Column(key="texts", title="texts"),
            Column(key="spent", title="mean spent", num_decimals=1),
            Column(key="word_lcs", title="mean word LCS", num_decimals=2),
            Column(key="correlation", title="rank correlation", num_decimals=2),
        ],
        rows=rows,
        draw=partial(
            plot_series,
            {"": series},
            title="Nats spent and words copied, a point a text",
            x_label="spent, nats",
            y_label="longest copied span, words",
            look="points",
        ),
    )


def _relation(setting: str, points: Sequence[tuple[float, float]]) -> dict[str, Cell]:
    spent, copied = (np.array(values) for values in zip(*points, strict=True))
    return {
        "setting": setting,
        "texts": len(points),
        "spent": float(spent.mean()),
        "word_lcs": float(copied.mean()),
        "correlation": rank_correlation(spent.tolist(), copied.tolist()),
    }


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's, equal values sharing their mean rank; nan where one sequence does not vary."""
    ranks = [_ranks(np.array(values, dtype=np.float64)) for values in (first, second)]
    spread = [own - own.mean() for own in ranks]
    norm = math.sqrt(math.prod(float(own @ own) for own in spread))
    return float(spread[0] @ spread[1]) / norm if norm else math.nan


def _ranks(values: Any) -> Any:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[place]


def _copying(run: RecordedRun, setting: str | None) -> list[RecordedGeneration]:
    texts = run.by_setting[setting] if setting is not None else []
    return [own for own in texts if own.copying is not None]


def _figure(text: RecordedGeneration, key: str) -> float:
    return float((text.copying or {})[key])


def _metric_columns() -> list[Column]:
    return [Column(key=key, title=title) for key, title in METRIC_TITLES.items()]
