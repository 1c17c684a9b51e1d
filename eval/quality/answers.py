"""Short answers to questions of fact, held against the right ones: utility without a judge.

Source: Chen et al. 2024, "CopyBench", whose questions are on the books of its other tasks.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from ..recorded_texts import RecordedText, figure_over_seeds, rows_by_setting

ANSWERS_METRIC: Final = "answers_v1"
"""Version of what is read of a text, and of how words are compared."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answer_f1(text: str, answer: str) -> float:
    """F1 of the words that the first line of a text shares with an answer, as SQuAD counts it.

    Case, punctuation and articles do not count. Source: Rajpurkar et al. 2016.
    """
    ours, theirs = (_words(own) for own in (text.strip().partition("\n")[0], answer))
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2.0 * common / (len(ours) + len(theirs)) if common else 0.0


def answer_results(texts: Sequence[RecordedText]) -> dict[str, Any]:
    """Everything about answers, for a results file: settings, and a row for each text."""
    rows = [{**text.key, "f1": answer_f1(text.text, text.answer or "")} for text in texts]
    settings = [
        {"setting": name, "f1": figure_over_seeds(own, "f1"), "num_texts": len(own)}
        for name, own in rows_by_setting(rows).items()
    ]
    return {
        "schema": "anchored-measure/1",
        "measure": "answers",
        "metric_set": ANSWERS_METRIC,
        "settings": settings,
        "rows": rows,
    }


def _words(text: str) -> list[str]:
    plain = text.lower().translate(_NO_PUNCTUATION)
    return re.sub(r"\b(a|an|the)\b", " ", plain).split()
