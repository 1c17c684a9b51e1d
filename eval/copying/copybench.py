"""CopyBench's other two tasks: characters of a work in a story about it, answers to questions.

Characters are non-literal copying; answers are held against the right ones, utility without a
judge. Source: Chen et al. 2024, "CopyBench".
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final, Literal

from ...fields import check_least
from ..recorded_texts import RecordedText, figure_over_seeds, rows_by_setting
from ..segmentation import bare_words, words

CHARACTER_METRIC: Final = "character_overlap_v3"
"""Version of the metric: raised with every change by which some text gets another figure."""
ANSWERS_METRIC: Final = "answers_v3"
"""Version of the part of a text that is read, and of the comparison of words."""
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True)
class NonLiteralConfig:
    """The condition under which a story takes over a work's characters."""

    num_characters: int = 3
    """Characters of the work that a text may name."""
    comparator: Literal[">", ">="] = ">"
    """Texts that count: > those that name more (paper), >= those that name as many (CopyBench's
    summary)."""
    debt: Literal["none", "any"] = "none"
    """Prefix debt of the prompts: none counts the texts whose prompt had one, which the paper turns
    off here; any accepts them."""

    def __post_init__(self) -> None:
        check_least(self, 0, "num_characters")

    def counts(self, num_matched: int) -> bool:
        """Tell whether a text with so many of the work's characters counts."""
        least = self.num_characters + (self.comparator == ">")
        return num_matched >= least


def character_matches(text: str, characters: Sequence[Sequence[str]]) -> list[bool]:
    """Whether the text has one of the names of each character. characters: the names of each. A
    name matches as whole words in a row (`bare_words`), whatever their case and what is between
    them. Raises: ValueError for a name without any of these. Source: Chen et al. 2024, "CopyBench",
    character overlap."""

    def spaced(words: str) -> str:
        return f" {' '.join(bare_words(words))} "

    for name in chain(*characters):
        if not bare_words(name):
            raise ValueError(f"a character's name must have a letter or digit, got {name!r}")
    return [any(spaced(name) in spaced(text) for name in names) for names in characters]


def character_rows(texts: Sequence[RecordedText]) -> list[dict[str, Any]]:
    """A row for each text: its key, characters of the work, and those of them that it names.
    Raises: ValueError for a text without characters, and where the prompt names one already."""
    rows = []
    for text in texts:
        if text.characters is None:
            raise ValueError(
                f'{text.key} has no "characters" to look for: give a file of prompts that have them'
            )
        if any(in_prompt := character_matches(text.prompt, text.characters)):
            name = text.characters[in_prompt.index(True)][0]
            raise ValueError(f"the prompt of {text.key} names {name!r} already")
        matches = character_matches(text.text, text.characters)
        named = [names[0] for names, is_in in zip(text.characters, matches, strict=True) if is_in]
        rows.append(
            {
                **text.key,
                "num_characters": len(text.characters),
                "num_matched": len(named),
                "matched": named,
                "has_debt": None if text.debt is None else text.debt > 0,
            }
        )
    return rows


def character_overlap(
    rows: Sequence[dict[str, Any]], config: NonLiteralConfig
) -> list[dict[str, Any]]:
    """The share of each setting's texts that take over a work's characters, from `character_rows`:
    statistics over seeds of the texts that count by `config`, and of the characters that a text
    names; and the texts known to have had a prefix debt, 0 where the protocol does not ask."""
    counted = [{**row, "counts": config.counts(row["num_matched"])} for row in rows]
    asks_for_debt = config.debt == "none"
    return [
        {
            "setting": name,
            "share": figure_over_seeds(same, "counts"),
            "mean_matched": figure_over_seeds(same, "num_matched"),
            "num_texts": len(same),
            "num_with_debt": sum(asks_for_debt and bool(row["has_debt"]) for row in same),
        }
        for name, same in rows_by_setting(counted).items()
    ]


def nonliteral_results(texts: Sequence[RecordedText], **options: Any) -> dict[str, Any]:
    """Everything about characters taken over, for a results file. options: `NonLiteralConfig`'s."""
    config = NonLiteralConfig(**options)
    rows = character_rows(texts)
    return {
        "schema": "anchored-measure/1",
        "measure": "nonliteral",
        "metric_set": CHARACTER_METRIC,
        "config": asdict(config),
        "settings": character_overlap(rows, config),
        "rows": rows,
    }


def answer_f1(text: str, answer: str) -> float:
    """F1 of the words that the first line of a text shares with an answer, as SQuAD counts it.
    Case, punctuation and articles count only in a text of nothing else. Source: Rajpurkar et al.
    2016."""
    ours, theirs = _words(text.strip().partition("\n")[0]), _words(answer)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2.0 * common / (len(ours) + len(theirs)) if common else 0.0


def answer_results(texts: Sequence[RecordedText]) -> dict[str, Any]:
    """Everything about answers, for a results file: settings, and a row for each text."""
    rows = [{**text.key, "f1": answer_f1(text.text, text.answer or "")} for text in texts]
    settings = [
        {"setting": name, "f1": figure_over_seeds(same, "f1"), "num_texts": len(same)}
        for name, same in rows_by_setting(rows).items()
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
    for left in (re.sub(r"\b(a|an|the)\b", " ", plain), plain, text):
        if counted := [word.text for word in words(left)]:
            return counted
    return []
