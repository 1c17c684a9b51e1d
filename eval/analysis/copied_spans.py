"""Copied spans by the prompt's debt, and by their position in the text."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np

from ..figures.distributions import Series, histogram, plot_series
from ..figures.style import BLUE, GREEN, PURPLE, VERMILION
from ..recorded_texts import ALONE, RISKY, SAFE, Record, grouped
from ..report.page import Section
from ..report.tables import SETTING_COLUMN, Column, Row
from .recorded_run import NotMeasured, RecordedRun

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
_OURS, _OTHERS = "with a bound", "other methods"
_COLORS: Final = {ALONE[SAFE]: GREEN, ALONE[RISKY]: VERMILION, _OURS: BLUE, _OTHERS: PURPLE}


def debt_deciles(run: RecordedRun) -> Section:
    """The risky model's copying by tenths of the prompts in order of their debt, by window.

    Source: paper, figure "Prefix debt correlates with copying metrics".
    """
    copied = grouped(_copying(run, RISKY), lambda row: str(row["id"]))
    rows = [row for window in sorted(run.debts) for row in _deciles(run, copied, window)]
    if not rows:
        raise NotMeasured("no text of the risky model alone has both a copying row and a debt")
    by_window = grouped(rows, lambda row: f"window {row['window']}")
    return Section(
        title="Debts of prompts and what is copied after them",
        note="Prompts in order of their debt, the mean of as many of their largest ratios as the "
        "window has, in at most ten groups; means of the six metrics over the texts of the risky "
        "model alone. ROUGE is F1.",
        columns=[
            Column("window"),
            Column("decile", "group"),
            Column("prompts"),
            Column("from", "debt from", num_decimals=2),
            Column("to", num_decimals=2),
            *(Column(key, title) for key, title in METRIC_TITLES.items()),
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


def _deciles(
    run: RecordedRun, copied: Mapping[str, Sequence[Record]], window: int
) -> Iterator[dict[str, float]]:
    """A row for each group of the prompts that have both a debt and texts."""
    debts = run.debts[window]
    known = [prompt for prompt in copied if math.isfinite(debts.get(prompt, math.inf))]
    in_order = sorted(known, key=lambda prompt: (debts[prompt], prompt))
    for number, prompts in enumerate(np.array_split(in_order, min(NUM_BINS, len(known) or 1)), 1):
        texts = [row for prompt in prompts for row in copied[prompt]]
        if texts:
            yield {
                "window": window,
                "decile": number,
                "prompts": len(prompts),
                "from": debts[prompts[0]],
                "to": debts[prompts[-1]],
                **{key: sum(row[key] for row in texts) / len(texts) for key in METRIC_TITLES},
            }


def start_positions(run: RecordedRun) -> Section:
    """The starts of the copied spans of each setting's texts, in words.

    Source: paper, figure "High-copying regions are front-loaded".
    """
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
    others = {name: _OURS if name in run.budgeted else _OTHERS for name in starts} | ALONE
    for kind, settings in grouped(starts, others.__getitem__).items():
        num_texts = sum(len(copied[setting]) for setting in settings)
        for spans in starts[settings[0]]:
            words = [start for setting in settings for start in starts[setting][spans]]
            if words:
                edges = [float(each) for each in range(0, max(words) + BIN_WORDS + 1, BIN_WORDS)]
                panels.setdefault(spans, {})[kind] = histogram(words, edges, num_texts)
    return Section(
        title="Where copied spans begin",
        note="Words before the longest common span of a text, whatever its length and where it has "
        "five words at least, and before the first span that ACS counts. Early: the share that "
        f"begins within the first {EARLY_WORDS} words.",
        columns=[
            SETTING_COLUMN,
            Column("spans"),
            Column("texts"),
            Column("median", "median start", num_decimals=1),
            Column("early"),
        ],
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
